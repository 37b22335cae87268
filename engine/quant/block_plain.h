// Decoders of block formats with one scale, or a scale and a minimum, for some weights: Q4_0 to
// Q8_0, Q1_0, Q2_0, TQ1_0, TQ2_0, MXFP4, NVFP4. See blocks.h.
#pragma once

#include "engine/quant/block_group.h"

namespace strata {
namespace blocks {

STRATA_BLOCK_FN void nibbles(STRATA_BLOCK_BYTES qs, STRATA_BLOCK_LOCAL uint8_t* q) {
    STRATA_BLOCK_LOOP
    for (int i = 0; i < 16; ++i) {
        q[i] = static_cast<uint8_t>(qs[i] & 15);
        q[i + 16] = static_cast<uint8_t>(qs[i] >> 4);
    }
}

STRATA_BLOCK_FN void fifth_bits(uint32_t qh, STRATA_BLOCK_LOCAL uint8_t* q) {
    for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>(q[i] | (((qh >> i) & 1u) << 4));
}

// Q4_0, 18 bytes: d f16, 16 bytes of nibbles (low: weights 0..15, high: 16..31).
STRATA_BLOCK_FN void decode_q4_0(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 18u * g;
    plain_scales(group, read_u16(block), 0);
    nibbles(block + 2, group.q);
}

// Q4_1, 20 bytes: d f16, m f16, nibbles.
STRATA_BLOCK_FN void decode_q4_1(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 20u * g;
    plain_scales(group, read_u16(block), read_u16(block + 2));
    nibbles(block + 4, group.q);
}

// Q5_0, 22 bytes: d f16, 32 fifth bits, nibbles.
STRATA_BLOCK_FN void decode_q5_0(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 22u * g;
    plain_scales(group, read_u16(block), 0);
    nibbles(block + 6, group.q);
    fifth_bits(read_u32(block + 2), group.q);
}

// Q5_1, 24 bytes: d f16, m f16, 32 fifth bits, nibbles.
STRATA_BLOCK_FN void decode_q5_1(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 24u * g;
    plain_scales(group, read_u16(block), read_u16(block + 2));
    nibbles(block + 8, group.q);
    fifth_bits(read_u32(block + 4), group.q);
}

// Q8_0, 34 bytes: d f16, 32 signed bytes. Flipping the top bit makes codes with zero = 128.
STRATA_BLOCK_FN void decode_q8_0(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 34u * g;
    plain_scales(group, read_u16(block), 0);
    for (int i = 0; i < 32; ++i) group.q[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
}

// Q1_0, 18 bytes: d f16, 128 bits; weights are d where the bit is set, else -d.
STRATA_BLOCK_FN void decode_q1_0(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 18u * (g / 4);
    plain_scales(group, read_u16(block), 0);
    const uint32_t bits = read_u32(block + 2 + 4 * (g % 4));
    for (int i = 0; i < 32; ++i) group.q[i] = static_cast<uint8_t>(((bits >> i) & 1u) << 1);
}

// Q2_0, 18 bytes: d f16, 16 bytes of four codes each, the first in the lowest bits.
STRATA_BLOCK_FN void decode_q2_0(STRATA_BLOCK_BYTES row,
                                 uint32_t g,
                                 STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 18u * (g / 2);
    plain_scales(group, read_u16(block), 0);
    STRATA_BLOCK_BYTES codes = block + 2 + 8 * (g % 2);
    for (int i = 0; i < 8; ++i) {
        for (int j = 0; j < 4; ++j)
            group.q[4 * i + j] = static_cast<uint8_t>((codes[i] >> (2 * j)) & 3);
    }
}

// Group j of a block of 256 codes of 2 bits. Halves of 128 weights have 32 bytes each; group p of a
// half lies at bit 2 p.
STRATA_BLOCK_FN void pairs(STRATA_BLOCK_BYTES qs, uint32_t j, STRATA_BLOCK_LOCAL uint8_t* q) {
    STRATA_BLOCK_BYTES half_block = qs + 32u * (j / 4);
    const int shift = static_cast<int>(2 * (j % 4));
    for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>((half_block[i] >> shift) & 3);
}

// TQ2_0, 66 bytes: 64 bytes of pairs, d f16.
STRATA_BLOCK_FN void decode_tq2_0(STRATA_BLOCK_BYTES row,
                                  uint32_t g,
                                  STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 66u * (g / 8);
    plain_scales(group, read_u16(block + 64), 0);
    pairs(block, g % 8, group.q);
}

// Digits of `count` bytes that hold five base-3 digits each, as fractions of 256: what a byte times
// 3^n (`power`) has below 256, times 3, has digit n above.
STRATA_BLOCK_FN void trits(STRATA_BLOCK_BYTES bytes,
                           int count,
                           int power,
                           STRATA_BLOCK_LOCAL uint8_t* q) {
    for (int i = 0; i < count; ++i)
        q[i] = static_cast<uint8_t>((((bytes[i] * power) & 255) * 3) >> 8);
}

// TQ1_0, 54 bytes: 52 bytes of base-3 digits, d f16. Digit n of bytes 0..31 is weight 32 n + i, of
// bytes 32..47 weight 160 + 16 n + i, of bytes 48..51 weight 240 + 4 n + i (four digits only).
STRATA_BLOCK_FN void decode_tq1_0(STRATA_BLOCK_BYTES row,
                                  uint32_t g,
                                  STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 54u * (g / 8);
    const uint32_t j = g % 8;
    plain_scales(group, read_u16(block + 52), 0);
    if (j < 5) {
        const int power = j == 0 ? 1 : j == 1 ? 3 : j == 2 ? 9 : j == 3 ? 27 : 81;
        trits(block, 32, power, group.q);
    } else if (j < 7) {
        const int power = j == 5 ? 1 : 9;
        trits(block + 32, 16, power, group.q);
        trits(block + 32, 16, 3 * power, group.q + 16);
    } else {
        trits(block + 32, 16, 81, group.q);
        int power = 1;
        for (int n = 0; n < 4; ++n, power *= 3) trits(block + 48, 4, power, group.q + 16 + 4 * n);
    }
}

// 12 + twice the value of a float of 1 sign, 2 exponent and 1 mantissa bits (OCP Microscaling,
// version 1.0): 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
STRATA_BLOCK_TABLE uint8_t kE2m1Codes[16] = {
    12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// MXFP4, 17 bytes: a power of two of 8 bits (bias 127, one more for the doubled codes), nibbles.
// Its range is that of bf16, also for the two powers that are denormal there.
STRATA_BLOCK_FN void decode_mxfp4(STRATA_BLOCK_BYTES row,
                                  uint32_t g,
                                  STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 17u * g;
    const int e = block[0];
    plain_scales(group, static_cast<uint16_t>(e < 2 ? 0x20 << e : (e - 1) << 7), 0);
    nibbles(block + 1, group.q);
    for (int i = 0; i < 32; ++i) group.q[i] = kE2m1Codes[group.q[i]];
}

// f16 bits of half the value of an unsigned float of 4 exponent and 3 mantissa bits (bias 7); 0x7f,
// a NaN there, is 0 in GGML, and the top bit counts for nothing.
STRATA_BLOCK_FN uint16_t ue4m3_half(uint8_t bits) {
    const int exponent = (bits >> 3) & 15;
    const int mantissa = bits & 7;
    if (bits == 0x7f) return 0;
    if (exponent == 0) return f32_to_f16(static_cast<float>(mantissa) * 0.0009765625f);
    return static_cast<uint16_t>(((exponent + 7) << 10) | (mantissa << 7));
}

// NVFP4, 36 bytes: four scales, one for 16 weights, and for each of them 8 bytes of nibbles (low:
// weights 0..7, high: 8..15). The scale of a whole tensor is no part of its blocks.
STRATA_BLOCK_FN void decode_nvfp4(STRATA_BLOCK_BYTES row,
                                  uint32_t g,
                                  STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 36u * (g / 2);
    plain_scales(group, 0, 0);
    for (uint32_t h = 0; h < 2; ++h) {
        const uint32_t part = 2 * (g % 2) + h;
        group.d[h] = ue4m3_half(block[part]);
        STRATA_BLOCK_BYTES bytes = block + 4 + 8 * part;
        for (uint32_t i = 0; i < 8; ++i) {
            group.q[16 * h + i] = kE2m1Codes[bytes[i] & 15];
            group.q[16 * h + 8 + i] = kE2m1Codes[bytes[i] >> 4];
        }
    }
}

}  // namespace blocks
}  // namespace strata
