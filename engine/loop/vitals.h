// What the I/O threads may tell about the compute thread without asking it. Written by the compute
// thread only, read by the reader thread (PONG); relaxed order is enough, each value stands alone.
#pragma once

#include <atomic>
#include <cstdint>

namespace strata {

struct Vitals {
    std::atomic<uint64_t> step{0};  // steps begun
    std::atomic<bool> is_busy{false};
};

}  // namespace strata
