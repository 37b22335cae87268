// Bounds of the values that users and supervisors may ask for. They keep products of sizes within
// 64 bits; whether a machine can run them is the planner's question.
#pragma once

#include <cstdint>

namespace strata {

inline constexpr uint32_t kBatchMax = 1024;
inline constexpr uint32_t kPrefillMax = 8192;
inline constexpr uint32_t kThreadsMax = 1024;
inline constexpr uint64_t kKvTokensMax = uint64_t{1} << 30;

}  // namespace strata
