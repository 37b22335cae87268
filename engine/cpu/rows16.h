// "rows16": block-format weights rearranged for int8 matmuls, in tiles of 16 output rows.
//
// A tile holds, each region padded to 64 bytes:
//   scales      f16 [blocks, 16]   the file's d, exact (bf16 for MXFP4), one for the weights that
//                                  share it in the file
//   mins        f16 [blocks, 16]   the file's m, or -dmin for K formats
//   sub_scales  i8 [k / 16 or k / 32, 16]
//   sub_mins    i8 [the same]
//   quants      [k / 32, C, 16 rows, 4 bytes]: each 4-byte lane holds 4 consecutive k of one row.
//               Codes of 8 bits: C = 8. Of 4, 2 and 1 bits: C = 4, 2 and 1; chunk c has k 4c..4c+3
//               in its lowest bits, 4(c+C)..4(c+C)+3 in the next, and so on. Of 3 bits (Q3_K):
//               C = 3, two chunks of pairs as above, and one of third bits.
// Rows past n have scale 0. Codes are unsigned, with the zero points of blocks.h; where nibbles are
// places in a table of values (IQ3, IQ4, MXFP4, NVFP4), the layout has the table.
//
// Bytes kept for 256 weights, of the file and packed:
//   Q1_0 36, 36    Q2_0, IQ4_NL 72 / 144, the same    TQ1_0 54, 66    TQ2_0 66, 66    Q2_K 84, 100
//   IQ3_XXS 98, 138    Q3_K 110, 114    IQ3_S 110, 138    MXFP4 136, 144    IQ4_XS 136, 138
//   NVFP4 144, 160    Q4_0, Q4_1, Q4_K 144, 160, 144, the same (Q4_K 148)    Q5_0 176, 272
//   Q5_1 192, 288    Q5_K 176, 276    Q6_K 210, 274    Q8_0 272, 272
// IQ1 and IQ2 would take 138 to 146 for 50 to 82. They stay as the file has them, and launches
// unpack one tile at a time, as bytes, into scratch memory (L2), once for all rows of the step.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/backend/kernel.h"
#include "engine/cpu/isa_ops.h"

namespace strata::cpu {

inline constexpr uint32_t kTileRows = 16;

// The format of a type's tiles, or nothing for types that are no block format.
std::optional<PackedFormat> packed_format(DType type);

// Offsets within a tile; `k` is a multiple of the type's block.
Rows16Layout rows16_layout(DType type, uint32_t k);

// The one packing of int8 matmuls: bytes of a whole weight, and packing of a range of its tiles.
// `pack` writes every byte of its tiles and may run for several ranges at once.
const Packing& rows16_packing();

// Packs tile `index` of a weight into `tile` [tile_bytes], whatever is there; rows past n are
// unspecified numbers.
void rows16_unpack_tile(const WeightView& from, uint32_t index, uint8_t* tile);

}  // namespace strata::cpu
