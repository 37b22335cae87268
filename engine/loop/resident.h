// How much memory the process keeps resident, for STATS.
#pragma once

#include <cstdint>

namespace strata {

// Bytes; 0 where the system does not say.
uint64_t resident_bytes();

}  // namespace strata
