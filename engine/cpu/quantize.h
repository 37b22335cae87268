// Layout of activations rounded to int8 ("I8Block"), as Quantize writes and int8 matmuls read it.
//
// A row of k values (k a multiple of 32) has k / 32 blocks:
//   values [rows, k]       int8, in [-127, 127]; -128 never occurs (matmuls rely on it)
//   scales [rows, k / 32]  f32, largest magnitude of the block / 127; value = scale * int8
//   sums   [rows, k / 32]  two int16 in one int32: the low half is the sum of the block's first 16
//                          int8 values, the high half of its last 16. Matmuls correct zero points
//                          with one multiply-add of int16 pairs, and Q6_K needs sums of 16.
// Rounding is to nearest, ties to even, of x * (127 / largest). A block whose largest magnitude is
// below 1e-35 is all zero. A block with an infinity or a NaN gets scale NaN, so that a numeric
// fault shows up in the logits instead of being rounded away.
#pragma once

#include <cstdint>

namespace strata::cpu {

inline constexpr uint32_t kQuantBlock = 32;

}  // namespace strata::cpu
