// Decoders of the K formats, blocks of 256 weights with scales of scales: Q2_K to Q6_K. See
// blocks.h.
#pragma once

#include "engine/quant/block_group.h"
#include "engine/quant/block_plain.h"

namespace strata {
namespace blocks {

// Q2_K, 84 bytes: 16 scales (low nibble) and minimums (high) of 16 weights each, 64 bytes of pairs,
// d f16, dmin f16.
STRATA_BLOCK_FN void decode_q2_k(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 84u * (g / 8);
    plain_scales(group, read_u16(block + 80), read_u16(block + 82));
    for (uint32_t h = 0; h < 2; ++h) {
        const uint8_t packed = block[2 * (g % 8) + h];
        group.sub_scale[h] = static_cast<int16_t>(packed & 15);
        group.sub_min[h] = static_cast<int16_t>(packed >> 4);
    }
    pairs(block + 16, g % 8, group.q);
}

// Q3_K, 110 bytes: 32 bytes of third bits (bit j of byte i belongs to weight i of group j), 64
// bytes of pairs, 12 bytes of 16 scales of 6 bits (zero 32): scale s has its low nibble in byte s %
// 8, its high pair in byte 8 + s % 4; d f16.
STRATA_BLOCK_FN void decode_q3_k(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 110u * (g / 8);
    STRATA_BLOCK_BYTES packed = block + 96;
    const uint32_t j = g % 8;
    plain_scales(group, read_u16(block + 108), 0);
    for (uint32_t h = 0; h < 2; ++h) {
        const uint32_t s = 2 * j + h;
        const int low = (packed[s % 8] >> (s < 8 ? 0 : 4)) & 15;
        const int high = (packed[8 + s % 4] >> (2 * (s / 4))) & 3;
        group.sub_scale[h] = static_cast<int16_t>((low | (high << 4)) - 32);
    }
    pairs(block + 32, j, group.q);
    for (int i = 0; i < 32; ++i)
        group.q[i] = static_cast<uint8_t>(group.q[i] | (((block[i] >> j) & 1) << 2));
}

// The 12 bytes of 6-bit scales and minimums that Q4_K and Q5_K share; j = group in the block.
STRATA_BLOCK_FN void k_scales(STRATA_BLOCK_BYTES block,
                              uint32_t j,
                              STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES packed = block + 4;
    int scale = 0;
    int min = 0;
    if (j < 4) {
        scale = packed[j] & 63;
        min = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        min = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
    }
    plain_scales(group, read_u16(block), read_u16(block + 2));
    for (int h = 0; h < 2; ++h) {
        group.sub_scale[h] = static_cast<int16_t>(scale);
        group.sub_min[h] = static_cast<int16_t>(min);
    }
}

// Two groups share 32 bytes: the even group in the low nibbles, the odd one in the high.
STRATA_BLOCK_FN void k_nibbles(STRATA_BLOCK_BYTES qs, uint32_t j, STRATA_BLOCK_LOCAL uint8_t* q) {
    STRATA_BLOCK_BYTES half_block = qs + 32u * (j / 2);
    const int shift = (j & 1u) != 0 ? 4 : 0;
    for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>((half_block[i] >> shift) & 15);
}

// Q4_K, 144 bytes: d f16, dmin f16, 12 bytes of scales, 128 bytes of nibbles.
STRATA_BLOCK_FN void decode_q4_k(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 144u * (g / 8);
    k_scales(block, g % 8, group);
    k_nibbles(block + 16, g % 8, group.q);
}

// Q5_K, 176 bytes: d f16, dmin f16, 12 bytes of scales, 32 bytes of fifth bits (bit j of byte i
// belongs to weight i of group j), 128 bytes of nibbles.
STRATA_BLOCK_FN void decode_q5_k(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 176u * (g / 8);
    const uint32_t j = g % 8;
    k_scales(block, j, group);
    k_nibbles(block + 48, j, group.q);
    for (int i = 0; i < 32; ++i)
        group.q[i] = static_cast<uint8_t>(group.q[i] | (((block[16 + i] >> j) & 1) << 4));
}

// Q6_K, 210 bytes: 128 bytes of low nibbles, 64 bytes of high pairs, 16 signed scales (one for 16
// weights), d f16. Halves of 128 weights; group p of a half has its nibbles in bytes
// 32 * (p & 1) .. + 31, low for p < 2, and its pairs at bit 2 p.
STRATA_BLOCK_FN void decode_q6_k(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 210u * (g / 8);
    const uint32_t j = g % 8;
    const uint32_t p = j % 4;
    STRATA_BLOCK_BYTES low = block + 64u * (j / 4) + 32u * (p & 1u);
    STRATA_BLOCK_BYTES high = block + 128 + 32u * (j / 4);
    const int low_shift = p < 2 ? 0 : 4;
    const int high_shift = static_cast<int>(2 * p);
    for (int i = 0; i < 32; ++i) {
        const int nibble = (low[i] >> low_shift) & 15;
        const int pair = (high[i] >> high_shift) & 3;
        group.q[i] = static_cast<uint8_t>(nibble | (pair << 4));
    }
    plain_scales(group, read_u16(block + 208), 0);
    group.sub_scale[0] = static_cast<int16_t>(static_cast<int8_t>(block[192 + 2 * j]));
    group.sub_scale[1] = static_cast<int16_t>(static_cast<int8_t>(block[192 + 2 * j + 1]));
}

}  // namespace blocks
}  // namespace strata
