// What the decoders of block formats (blocks.h) share: conversions of half-width floats, and a
// group of 32 decoded weights. Plain C++ without the standard library, everything with internal
// linkage, so that CPU files of any instruction set, CUDA and Metal compile the same text.
//
// A group's weight i is   scale(i / 16) * (q[i] - zero) [+ min(i / 16)]   in f32, in exactly this
// order of roundings (results equal those of GGML's own decoders bit for bit):
//   scale(h) = float(d[h]) * unit * sub_scale[h],   min(h) = f16(m) * sub_min[h];
// K formats subtract their minimum instead. `unit` is a power of two: what GGML's IQ formats
// multiply by halves and eighths is a whole number here, and no bit differs.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#define STRATA_BLOCK_FN static inline
#define STRATA_BLOCK_BYTES device const uint8_t*
#define STRATA_BLOCK_LOCAL thread
#define STRATA_BLOCK_TABLE constant
#else
#include <stdint.h>
#if defined(__CUDACC__)
// Of the device only, as the tables are.
#define STRATA_BLOCK_FN static __device__ __forceinline__
#define STRATA_BLOCK_TABLE static __device__ const
#else
#define STRATA_BLOCK_FN static inline
#define STRATA_BLOCK_TABLE static constexpr
#endif
#define STRATA_BLOCK_BYTES const uint8_t*
#define STRATA_BLOCK_LOCAL
#endif

// GCC unrolls loops of 16 before it vectorises and then gathers single bytes; unrolling by 1 keeps
// the loop for its vectoriser (three times as fast for Q4_1).
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
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
    uint8_t q[32];  // unsigned codes
    uint16_t d[2];  // of weights 0..15 and 16..31: f16 bits, or bf16 where the format says so
    uint16_t m;     // f16 bits; 0 where the format has no minimum
    int16_t sub_scale[2];  // of weights 0..15 and 16..31; 1 where the format has none
    int16_t sub_min[2];    // likewise
};

// What a format looks like; `zero` is subtracted from every code.
struct Format {
    int zero;
    int min_sign;  // +1: the minimum is added, -1: subtracted, 0: there is none
    float unit;
    bool is_bf16;  // d is bf16
};

STRATA_BLOCK_FN void plain_scales(STRATA_BLOCK_LOCAL Group& group, uint16_t d, uint16_t m) {
    for (int h = 0; h < 2; ++h) {
        group.d[h] = d;
        group.sub_scale[h] = 1;
        group.sub_min[h] = 1;
    }
    group.m = m;
}

// Codes from the eight bytes of a word, the lowest first.
STRATA_BLOCK_FN void store_codes(STRATA_BLOCK_LOCAL uint8_t* q, uint64_t word) {
    for (int i = 0; i < 8; ++i) q[i] = static_cast<uint8_t>(word >> (8 * i));
}

// The same byte in all eight of a word.
STRATA_BLOCK_FN uint64_t in_each_byte(uint8_t byte) {
    return 0x0101010101010101u * static_cast<uint64_t>(byte);
}

// Products of CUDA kernels are rounded before anything is added to them, as everywhere else.
STRATA_BLOCK_FN float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

// One group to 32 floats.
STRATA_BLOCK_FN void group_to_f32(STRATA_BLOCK_LOCAL const Group& group,
                                  Format format,
                                  STRATA_BLOCK_LOCAL float* out) {
    for (int h = 0; h < 2; ++h) {
        const float d = format.is_bf16 ? bf16_to_f32(group.d[h]) : f16_to_f32(group.d[h]);
        const float scale = d * (format.unit * static_cast<float>(group.sub_scale[h]));
        STRATA_BLOCK_LOOP
        for (int i = 16 * h; i < 16 * h + 16; ++i)
            out[i] = rounded_product(
                scale, static_cast<float>(static_cast<int>(group.q[i]) - format.zero));
    }
    if (format.min_sign == 0) return;
    for (int h = 0; h < 2; ++h) {
        const float min =
            rounded_product(f16_to_f32(group.m), static_cast<float>(group.sub_min[h]));
        // Adding -min instead would turn -0 - 0 into +0.
        STRATA_BLOCK_LOOP
        for (int i = 16 * h; i < 16 * h + 16; ++i)
            out[i] = format.min_sign > 0 ? out[i] + min : out[i] - min;
    }
}

}  // namespace blocks
}  // namespace strata
