// The compute thread's loop, from READY to the end: messages in, steps, effects out. Single owner
// of all serving state; other threads reach it through the inbox only. One of the three places that
// catch: a step that throws ends its sequences, and the process only where the device or its memory
// is gone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/backend/runtime.h"
#include "engine/base/beacon.h"
#include "engine/loop/channel.h"
#include "engine/loop/drafting.h"
#include "engine/loop/event_sender.h"
#include "engine/loop/inbox.h"
#include "engine/loop/intake.h"
#include "engine/loop/resident.h"
#include "engine/loop/scheduler.h"
#include "engine/loop/step_runner.h"
#include "engine/loop/vitals.h"
#include "engine/plan/mode.h"

namespace strata {

class EngineLoop {
  public:
    // All references outlive the loop. `plan` is what READY said. `has_fixed_drafts`: each sequence
    // drafts as much as it may, not as much as pays.
    EngineLoop(Channel& channel,
               Inbox& inbox,
               Vitals& vitals,
               Beacon& beacon,
               Runtime& runtime,
               const ModePlan& plan,
               const protocol::Limits& limits,
               bool has_fixed_drafts = false);

    // Serves until drained (Ok) or until the device fails (its code; DYING is sent).
    protocol::ExitCode run();

  private:
    bool take_messages();  // true if any was handled
    void handle(protocol::ToEngineMessage& message, uint64_t now_us);
    bool step();  // false if there was nothing to compute or no room for the result
    // Drafts for the step to come, `counter`.
    void propose_drafts(uint64_t counter, uint64_t now_us);
    void run(const Step& step, uint64_t begin_us);
    bool is_drained() const;
    void send_stats_if_due(uint64_t now_us);
    std::optional<std::chrono::milliseconds> idle_limit(uint64_t now_us) const;

    Channel& channel_;
    Inbox& inbox_;
    Vitals& vitals_;
    Beacon& beacon_;
    Scheduler scheduler_;
    Intake intake_;
    Runtime& runtime_;
    StepRunner runner_;
    std::optional<Drafting> drafting_;  // with plan.spec > 0
    bool has_fixed_drafts_;
    std::vector<uint32_t> fixed_depths_;
    std::vector<uint64_t> draft_rids_;
    EventSender sender_;
    Effects effects_;
    ResidentMeter resident_;
    size_t step_bytes_max_;
    std::vector<protocol::ToEngineMessage> messages_;
    size_t next_message_ = 0;
    bool is_draining_ = false;
    bool has_changed_ = false;  // since the last STATS
    uint64_t stats_us_ = 0;     // time of the last STATS
    double step_ms_ = 0;        // moving average
    std::optional<protocol::Dying> fatal_;
};

}  // namespace strata
