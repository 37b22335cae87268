// "rows16": block-format weights rearranged for int8 matmuls, in tiles of 16 output rows.
//
// A tile holds, each region padded to 64 bytes:
//   scales      f16 [blocks, 16]   the file's d, exact (blocks of 32, or of 256 for K formats)
//   mins        f16 [blocks, 16]   the file's m, or -dmin for K formats
//   sub_scales  Q4_K, Q5_K: u8 [k / 32, 16]; Q6_K: i8 [k / 16, 16]
//   sub_mins    Q4_K, Q5_K: u8 [k / 32, 16]
//   quants      [k / 32, C, 16 rows, 4 bytes]: each 4-byte lane holds 4 consecutive k of one row.
//               4-bit formats: C = 4, chunk c has k 4c..4c+3 in the low nibbles and
//               16+4c..16+4c+3 in the high ones. Others: C = 8, one code per byte.
// Rows past n have scale 0. Codes are unsigned, with the zero points of blocks.h.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/backend/kernel.h"
#include "engine/cpu/isa_ops.h"

namespace strata::cpu {

inline constexpr uint32_t kTileRows = 16;

// The packed format of a type of files, or nothing for types that are no block format.
std::optional<PackedFormat> packed_format(DType type);

// Offsets within a tile; `k` is a multiple of the type's block.
Rows16Layout rows16_layout(DType type, uint32_t k);

// The one packing of int8 matmuls: bytes of a whole weight, and packing of a range of its tiles.
// `pack` writes every byte of its tiles and may run for several ranges at once.
const Packing& rows16_packing();

}  // namespace strata::cpu
