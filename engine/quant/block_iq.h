// Decoders of the IQ formats: codes are places in tables of values (IQ4) or in codebooks of four or
// eight weights (grids.h), with signs beside them. See blocks.h.
#pragma once

#include "engine/quant/block_group.h"
#include "engine/quant/block_plain.h"
#include "engine/quant/grids.h"

namespace strata {
namespace blocks {

// 128 + the 16 values of IQ4_NL and IQ4_XS (`kvalues` of the `gguf` package).
STRATA_BLOCK_TABLE uint8_t kIq4Codes[16] = {
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

// IQ4_NL, 18 bytes: d f16, nibbles.
STRATA_BLOCK_FN void decode_iq4_nl(STRATA_BLOCK_BYTES row,
                                   uint32_t g,
                                   STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 18u * g;
    plain_scales(group, read_u16(block), 0);
    nibbles(block + 2, group.q);
    for (int i = 0; i < 32; ++i) group.q[i] = kIq4Codes[group.q[i]];
}

STRATA_BLOCK_FN void set_sub_scales(STRATA_BLOCK_LOCAL Group& group, int first, int second) {
    group.sub_scale[0] = static_cast<int16_t>(first);
    group.sub_scale[1] = static_cast<int16_t>(second);
}

// Groups 2 i and 2 i + 1 have their nibble in byte i.
STRATA_BLOCK_FN int nibble_of(STRATA_BLOCK_BYTES bytes, uint32_t j) {
    return (bytes[j / 2] >> ((j & 1u) != 0 ? 4 : 0)) & 15;
}

// IQ4_XS, 136 bytes: d f16, 16 bits of high pairs and 4 bytes of low nibbles of 8 scales (zero 32),
// 128 bytes of nibbles.
STRATA_BLOCK_FN void decode_iq4_xs(STRATA_BLOCK_BYTES row,
                                   uint32_t g,
                                   STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 136u * (g / 8);
    const uint32_t j = g % 8;
    plain_scales(group, read_u16(block), 0);
    const int high = (read_u16(block + 2) >> (2 * j)) & 3;
    const int scale = (nibble_of(block + 4, j) | (high << 4)) - 32;
    set_sub_scales(group, scale, scale);
    nibbles(block + 8 + 16 * j, group.q);
    for (int i = 0; i < 32; ++i) group.q[i] = kIq4Codes[group.q[i]];
}

// Eight fields of 2 bits to eight bytes; four fields of 4 bits to four bytes.
STRATA_BLOCK_FN uint64_t spread_pairs(uint32_t fields) {
    uint64_t x = fields;
    x = (x | (x << 24)) & 0x000000ff000000ffu;
    x = (x | (x << 12)) & 0x000f000f000f000fu;
    return (x | (x << 6)) & 0x0303030303030303u;
}

STRATA_BLOCK_FN uint64_t spread_nibbles(uint32_t fields) {
    uint32_t x = (fields | (fields << 8)) & 0x00ff00ffu;
    return (x | (x << 4)) & 0x0f0f0f0fu;
}

// Eight signs: 7 bits, and their parity as the eighth.
STRATA_BLOCK_FN uint32_t signs_of(uint32_t bits) {
    const uint32_t low = bits & 127u;
    uint32_t parity = low ^ (low >> 4);
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return low | ((parity & 1u) << 7);
}

// Eight codes zero + m, or zero - m where the bit of `signs` is set; zero + m stays below 256.
STRATA_BLOCK_FN uint64_t signed_codes(uint8_t zero, uint64_t magnitudes, uint32_t signs) {
    const uint64_t bits = in_each_byte(static_cast<uint8_t>(signs)) & 0x8040201008040201u;
    const uint64_t ones = ((bits + in_each_byte(0x7f)) >> 7) & in_each_byte(1);
    return in_each_byte(zero) + magnitudes - 2 * (magnitudes & (ones * 255u));
}

// Magnitudes of IQ2 codebooks: 8, 25, 43 for 0, 1, 2.
STRATA_BLOCK_FN uint64_t iq2_magnitudes(uint32_t fields) {
    const uint64_t x = spread_pairs(fields);
    return in_each_byte(8) + 17 * x + ((x >> 1) & in_each_byte(1));
}

// IQ2_XXS, 66 bytes: d f16; for each group four bytes of places in the codebook, and 32 bits of
// four times 7 signs and a scale.
STRATA_BLOCK_FN void decode_iq2_xxs(STRATA_BLOCK_BYTES row,
                                    uint32_t g,
                                    STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 66u * (g / 8);
    STRATA_BLOCK_BYTES places = block + 2 + 8 * (g % 8);
    const uint32_t rest = read_u32(places + 4);
    const int scale = static_cast<int>(2 * (rest >> 28) + 1);
    plain_scales(group, read_u16(block), 0);
    set_sub_scales(group, scale, scale);
    for (uint32_t l = 0; l < 4; ++l) {
        const uint64_t m = iq2_magnitudes(kIq2XxsGrid[places[l]]);
        store_codes(group.q + 8 * l, signed_codes(64, m, signs_of(rest >> (7 * l))));
    }
}

// IQ2_XS, 74 bytes: d f16; 32 times 16 bits, a place in the codebook (9) and signs (7); 16 scales
// of 16 weights, the first in the low nibble.
STRATA_BLOCK_FN void decode_iq2_xs(STRATA_BLOCK_BYTES row,
                                   uint32_t g,
                                   STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 74u * (g / 8);
    const uint32_t j = g % 8;
    const uint8_t scales = block[66 + j];
    plain_scales(group, read_u16(block), 0);
    set_sub_scales(group, 2 * (scales & 15) + 1, 2 * (scales >> 4) + 1);
    for (uint32_t l = 0; l < 4; ++l) {
        const uint32_t place = read_u16(block + 2 + 8 * j + 2 * l);
        const uint64_t m = iq2_magnitudes(kIq2XsGrid[place & 511u]);
        store_codes(group.q + 8 * l, signed_codes(64, m, signs_of(place >> 9)));
    }
}

// IQ2_S, 82 bytes: d f16; 32 bytes of low bits of places, 32 bytes of signs, 8 bytes of four high
// pairs of places each; scales as in IQ2_XS.
STRATA_BLOCK_FN void decode_iq2_s(STRATA_BLOCK_BYTES row,
                                  uint32_t g,
                                  STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 82u * (g / 8);
    const uint32_t j = g % 8;
    const uint32_t high = block[66 + j];
    const uint8_t scales = block[74 + j];
    plain_scales(group, read_u16(block), 0);
    set_sub_scales(group, 2 * (scales & 15) + 1, 2 * (scales >> 4) + 1);
    for (uint32_t l = 0; l < 4; ++l) {
        const uint32_t place = block[2 + 4 * j + l] | (((high >> (2 * l)) & 3u) << 8);
        const uint64_t m = iq2_magnitudes(kIq2SGrid[place]);
        store_codes(group.q + 8 * l, signed_codes(64, m, block[34 + 4 * j + l]));
    }
}

// IQ3_XXS, 98 bytes: d f16; 64 bytes of places, each of four weights; for each group 32 bits of
// four times 7 signs and a scale. Magnitudes are 4 + 8 x, but 62 for the last.
STRATA_BLOCK_FN void decode_iq3_xxs(STRATA_BLOCK_BYTES row,
                                    uint32_t g,
                                    STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 98u * (g / 8);
    STRATA_BLOCK_BYTES places = block + 2 + 8 * (g % 8);
    const uint32_t rest = read_u32(block + 66 + 4 * (g % 8));
    const int scale = static_cast<int>(2 * (rest >> 28) + 1);
    plain_scales(group, read_u16(block), 0);
    set_sub_scales(group, scale, scale);
    for (uint32_t l = 0; l < 4; ++l) {
        const uint64_t x = spread_nibbles(kIq3XxsGrid[places[2 * l]]) |
                           (spread_nibbles(kIq3XxsGrid[places[2 * l + 1]]) << 32);
        const uint64_t last = ((x + in_each_byte(1)) >> 3) & in_each_byte(1);
        const uint64_t m = in_each_byte(4) + 8 * x + 2 * last;
        store_codes(group.q + 8 * l, signed_codes(64, m, signs_of(rest >> (7 * l))));
    }
}

// IQ3_S, 110 bytes: d f16; 64 bytes of low bits of places, 8 bytes of their high bits, 32 bytes of
// signs, 8 scales of 4 bits. Magnitudes are 1 + 2 x.
STRATA_BLOCK_FN void decode_iq3_s(STRATA_BLOCK_BYTES row,
                                  uint32_t g,
                                  STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 110u * (g / 8);
    const uint32_t j = g % 8;
    const uint32_t high = block[66 + j];
    const int scale = 2 * nibble_of(block + 106, j) + 1;
    plain_scales(group, read_u16(block), 0);
    set_sub_scales(group, scale, scale);
    for (uint32_t l = 0; l < 4; ++l) {
        STRATA_BLOCK_BYTES low = block + 2 + 8 * j + 2 * l;
        const uint32_t first = low[0] | (((high >> (2 * l)) & 1u) << 8);
        const uint32_t second = low[1] | (((high >> (2 * l + 1)) & 1u) << 8);
        const uint64_t x =
            spread_nibbles(kIq3SGrid[first]) | (spread_nibbles(kIq3SGrid[second]) << 32);
        const uint64_t m = in_each_byte(1) + 2 * x;
        store_codes(group.q + 8 * l, signed_codes(16, m, block[74 + 4 * j + l]));
    }
}

// Codes of IQ1: values -1, 0, 1 of the codebook with an eighth added or taken off, in eighths, with
// zero = 64.
STRATA_BLOCK_FN uint64_t iq1_codes(uint32_t place, bool is_less) {
    return in_each_byte(is_less ? 55 : 57) + 8 * spread_pairs(kIq1Grid[place]);
}

// IQ1_S, 50 bytes: d f16; 32 bytes of low bits of places; for each group 16 bits: four times 3 high
// bits, a scale of 3 bits, and the sign of the eighth.
STRATA_BLOCK_FN void decode_iq1_s(STRATA_BLOCK_BYTES row,
                                  uint32_t g,
                                  STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 50u * (g / 8);
    const uint32_t j = g % 8;
    const uint32_t high = read_u16(block + 34 + 2 * j);
    const int scale = static_cast<int>(2 * ((high >> 12) & 7u) + 1);
    plain_scales(group, read_u16(block), 0);
    set_sub_scales(group, scale, scale);
    for (uint32_t l = 0; l < 4; ++l) {
        const uint32_t place = block[2 + 4 * j + l] | (((high >> (3 * l)) & 7u) << 8);
        store_codes(group.q + 8 * l, iq1_codes(place, (high & 0x8000u) != 0));
    }
}

// IQ1_M, 56 bytes: 32 bytes of low bits of places; 32 nibbles of 3 high bits and the sign of the
// eighth; four times 16 bits, each of four scales of 3 bits and, on top, a nibble of d f16.
STRATA_BLOCK_FN void decode_iq1_m(STRATA_BLOCK_BYTES row,
                                  uint32_t g,
                                  STRATA_BLOCK_LOCAL Group& group) {
    STRATA_BLOCK_BYTES block = row + 56u * (g / 8);
    const uint32_t j = g % 8;
    uint32_t d = 0;
    for (uint32_t i = 0; i < 4; ++i) d |= static_cast<uint32_t>(block[49 + 2 * i] >> 4) << (4 * i);
    plain_scales(group, static_cast<uint16_t>(d), 0);
    const int scales = read_u16(block + 48 + 2 * (j / 2)) >> (6 * (j % 2));
    set_sub_scales(group, 2 * (scales & 7) + 1, 2 * ((scales >> 3) & 7) + 1);
    for (uint32_t l = 0; l < 4; ++l) {
        const uint32_t high = static_cast<uint32_t>(nibble_of(block + 32 + 2 * j, l));
        const uint32_t place = block[4 * j + l] | ((high & 7u) << 8);
        store_codes(group.q + 8 * l, iq1_codes(place, (high & 8u) != 0));
    }
}

}  // namespace blocks
}  // namespace strata
