// Decodes one group of 32 weights of every block format of GGUF files that the engine runs: the one
// place that knows their bit layouts. Plain C++ without the standard library, everything with
// internal linkage, so that CPU files of any instruction set, CUDA and Metal compile the same text.
//
// A group's weight i is   scale(i / 16) * (q[i] - zero) [+ min]   in f32, in exactly this order of
// roundings (the order of GGML's own decoders, so results are equal bit for bit):
//   scale(h) = f16(d) * sub_scale[h],   min = f16(m) * sub_min;
// K formats subtract their minimum instead.
// Layouts follow the block structs documented by GGML (ggml-common.h) and the `gguf` package.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#define STRATA_BLOCK_FN static inline
#define STRATA_BLOCK_BYTES device const uint8_t*
#define STRATA_BLOCK_LOCAL thread
#else
#include <stdint.h>
#if defined(__CUDACC__)
#define STRATA_BLOCK_FN static __host__ __device__ __forceinline__
#else
#define STRATA_BLOCK_FN static inline
#endif
#define STRATA_BLOCK_BYTES const uint8_t*
#define STRATA_BLOCK_LOCAL
#endif

// GCC unrolls loops of 16 before it vectorises and then gathers single bytes; unrolling by 1 keeps
// the loop for its vectoriser (three times as fast for Q4_1).
#if defined(__GNUC__) && !defined(__clang__)
#define STRATA_BLOCK_LOOP _Pragma("GCC unroll 1")
#else
#define STRATA_BLOCK_LOOP
#endif

namespace strata {
namespace blocks {

STRATA_BLOCK_FN float bits_to_f32(uint32_t bits) {
#if defined(__METAL_VERSION__)
    return as_type<float>(bits);
#else
    return __builtin_bit_cast(float, bits);
#endif
}

STRATA_BLOCK_FN uint32_t f32_to_bits(float value) {
#if defined(__METAL_VERSION__)
    return as_type<uint32_t>(value);
#else
    return __builtin_bit_cast(uint32_t, value);
#endif
}

// IEEE half to float, exact. Scaling by 2^112 also turns half denormals into f32 normals.
STRATA_BLOCK_FN float f16_to_f32(uint16_t half_bits) {
#if defined(__METAL_VERSION__)
    return static_cast<float>(as_type<half>(half_bits));
#else
    const uint32_t sign = static_cast<uint32_t>(half_bits & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(half_bits & 0x7fffu) << 13;
    const uint32_t finite = f32_to_bits(bits_to_f32(magnitude) * bits_to_f32(0x77800000u));
    const uint32_t special = magnitude | 0x7f800000u;  // infinity and NaN keep their payload
    return bits_to_f32(sign | (magnitude >= 0x0f800000u ? special : finite));
#endif
}

// Float to IEEE half, round to nearest even; overflow gives infinity, NaN stays NaN.
STRATA_BLOCK_FN uint16_t f32_to_f16(float value) {
    const uint32_t bits = f32_to_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5 leaves the half's 10 denormal bits at the end of the mantissa,
        // rounded by the addition itself.
        const uint32_t sum = f32_to_bits(bits_to_f32(magnitude) + 0.5f);
        return static_cast<uint16_t>(sign | (sum - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

STRATA_BLOCK_FN float bf16_to_f32(uint16_t bits) {
    return bits_to_f32(static_cast<uint32_t>(bits) << 16);
}

// Blocks lie at any byte address.
STRATA_BLOCK_FN uint16_t read_u16(STRATA_BLOCK_BYTES at) {
    return static_cast<uint16_t>(at[0] | (at[1] << 8));
}

STRATA_BLOCK_FN uint32_t read_u32(STRATA_BLOCK_BYTES at) {
    return static_cast<uint32_t>(read_u16(at)) | (static_cast<uint32_t>(read_u16(at + 2)) << 16);
}

struct Group {
    uint8_t q[32];         // unsigned codes
    uint16_t d;            // f16 bits
    uint16_t m;            // f16 bits; 0 where the format has no minimum
    int16_t sub_scale[2];  // of weights 0..15 and 16..31; 1 where the format has none
    int16_t sub_min;       // 1 where the format has none
};

// What a format looks like; `zero` is subtracted from every code.
struct Format {
    int zero;
    int min_sign;  // +1: the minimum is added, -1: subtracted, 0: there is none
};

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

STRATA_BLOCK_FN void plain_scales(STRATA_BLOCK_LOCAL Group& group, uint16_t d, uint16_t m) {
    group.d = d;
    group.m = m;
    group.sub_scale[0] = 1;
    group.sub_scale[1] = 1;
    group.sub_min = 1;
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
    group.d = read_u16(block);
    group.m = read_u16(block + 2);
    group.sub_scale[0] = static_cast<int16_t>(scale);
    group.sub_scale[1] = static_cast<int16_t>(scale);
    group.sub_min = static_cast<int16_t>(min);
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

// One group to 32 floats.
STRATA_BLOCK_FN void group_to_f32(STRATA_BLOCK_LOCAL const Group& group,
                                  Format format,
                                  STRATA_BLOCK_LOCAL float* out) {
    const float d = f16_to_f32(group.d);
    for (int h = 0; h < 2; ++h) {
        const float scale = d * static_cast<float>(group.sub_scale[h]);
        STRATA_BLOCK_LOOP
        for (int i = 16 * h; i < 16 * h + 16; ++i)
            out[i] = scale * static_cast<float>(static_cast<int>(group.q[i]) - format.zero);
    }
    if (format.min_sign == 0) return;
    const float min = f16_to_f32(group.m) * static_cast<float>(group.sub_min);
    // Adding -min instead would turn -0 - 0 into +0.
    STRATA_BLOCK_LOOP
    for (int i = 0; i < 32; ++i) out[i] = format.min_sign > 0 ? out[i] + min : out[i] - min;
}

#if !defined(__METAL_VERSION__)
// Calls fn(decoder, format) for a GGML type id; false if this header has no decoder for it (formats
// that it does not list can be named and sized, dtype.h, but not read). The only switch over
// formats: `fn` is a generic callable so that each loop is compiled for its format.
template <class Fn>
static inline bool with_format(int ggml_type, Fn&& fn) {
    switch (ggml_type) {
        case 2:
            fn(decode_q4_0, Format{8, 0});
            return true;
        case 3:
            fn(decode_q4_1, Format{0, 1});
            return true;
        case 6:
            fn(decode_q5_0, Format{16, 0});
            return true;
        case 7:
            fn(decode_q5_1, Format{0, 1});
            return true;
        case 8:
            fn(decode_q8_0, Format{128, 0});
            return true;
        case 12:
            fn(decode_q4_k, Format{0, -1});
            return true;
        case 13:
            fn(decode_q5_k, Format{0, -1});
            return true;
        case 14:
            fn(decode_q6_k, Format{32, 0});
            return true;
        default:
            return false;
    }
}

// k consecutive weights of one row of a block format to f32; k a multiple of the block size.
static inline bool row_to_f32(int ggml_type, STRATA_BLOCK_BYTES row, float* out, uint32_t k) {
    return with_format(ggml_type, [&](auto decode, Format format) {
        Group group;
        for (uint32_t g = 0; g < k / 32; ++g) {
            decode(row, g, group);
            group_to_f32(group, format, out + 32u * g);
        }
    });
}
#endif  // Metal has no lambdas: its kernels name the decoder themselves

}  // namespace blocks
}  // namespace strata
