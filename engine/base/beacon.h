// The flight recorder: a page shared with the supervisor that says what the compute thread is
// doing, readable without this process's help and after its death (layout: beacon_layout.h).
//
// Written by the compute thread alone, but for the crash, exit and assert fields, which
// crash_handler.h owns. Readers are in another process: fields up to `rids` are guarded by the
// sequence counter, every other field is one word. No method allocates, locks or calls the system
// (the clock is read in user space). Without a descriptor the page is private memory, so that
// nobody has to ask whether there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/beacon_layout.h"

namespace strata {

class Beacon {
  public:
    // A private page.
    Beacon();
    ~Beacon();
    Beacon(const Beacon&) = delete;
    Beacon& operator=(const Beacon&) = delete;

    // Goes on in the file behind `fd`, which is closed. Answers why not (one sentence) where its
    // size is wrong or it cannot be mapped; the private page stays then. Before anything else.
    std::optional<std::string> attach(int fd);

    BeaconPage& page() { return *page_; }

    // Once, before work begins. Text that is too long is cut.
    void set_build(std::string_view build);
    void set_kernels(std::span<const std::string_view> ids);  // the first kBeaconKernelsMax

    // Each marks a movement.
    void set_phase(BeaconPhase phase);
    void set_mode(std::string_view mode);  // what is being proven; empty = nothing
    void set_plan(std::string_view plan);
    void begin_step(uint64_t step, BeaconPhase phase, std::span<const uint64_t> rids);
    void set_rows(uint32_t rows, uint32_t sequences);
    // Enters the step into the ring; nothing is launched any more.
    void end_step();
    void idle(BeaconPhase phase);  // no step and no request under way

    void set_rss(uint64_t bytes);
    void move();  // the clock into moved_ns

    // Where the compute thread is: one store. `kernel` indexes set_kernels.
    static uint64_t position(uint32_t kernel, uint32_t op, int32_t layer) {
        const uint32_t kept = kernel < kBeaconKernelsMax ? kernel : kBeaconNone - 1;
        return uint64_t{kept} | uint64_t{op & 0xFFFF} << 16 |
               (static_cast<uint64_t>(layer + 1) & 0xFFFF) << 32;
    }
    void launch(uint64_t position) {
        __atomic_store_n(&page_->position, position, __ATOMIC_RELAXED);
    }
    void launch_none() { launch(kBeaconNone); }

  private:
    void begin_write();
    void end_write();
    void begin_page();

    BeaconPage* page_;
    uint64_t step_begin_ns_ = 0;
};

// Nanoseconds of CLOCK_MONOTONIC; safe in a signal handler.
uint64_t monotonic_ns();

}  // namespace strata
