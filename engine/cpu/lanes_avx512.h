// AVX-512 (F, BW, VL, DQ, VNNI) lanes for the kernel bodies. Everything has internal linkage.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 sees the deliberately undefined pass-through operands of its own AVX-512 intrinsics
// (GCC bug 105593) in every function that inlines one, to the end of the file.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>
#include <stdint.h>

namespace strata::cpu {
namespace {

// Vectors of f32.
struct V {
    using T = __m512;
    static constexpr int kWidth = 16;
    static constexpr int kMatmulRows = 2;    // rows of an f32 matmul tile
    static constexpr int kQueriesMax = 6;    // queries of an attention tile
    static constexpr bool kAnyHead = false;  // attention needs head_dim in multiples of 32

    static __mmask16 first(uint32_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
    static T load(const float* at) { return _mm512_loadu_ps(at); }
    static T load(const uint16_t* f16) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(f16)));
    }
    static T load_bf16(const uint16_t* at) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
    static T load_n(const float* at, uint32_t n) { return _mm512_maskz_loadu_ps(first(n), at); }
    static void store(float* at, T a) { _mm512_storeu_ps(at, a); }
    static void store_n(float* at, T a, uint32_t n) { _mm512_mask_storeu_ps(at, first(n), a); }
    static void store_f16(uint16_t* at, T a) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at),
                            _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    // `a` holds whole numbers in [-127, 127].
    static void store_i8(int8_t* at, T a) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at),
                         _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
    }
    static T zero() { return _mm512_setzero_ps(); }
    static T set1(float a) { return _mm512_set1_ps(a); }
    static T add(T a, T b) { return _mm512_add_ps(a, b); }
    static T sub(T a, T b) { return _mm512_sub_ps(a, b); }
    static T mul(T a, T b) { return _mm512_mul_ps(a, b); }
    static T div(T a, T b) { return _mm512_div_ps(a, b); }
    static T fma(T a, T b, T c) { return _mm512_fmadd_ps(a, b, c); }
    // A NaN in `b` is kept.
    static T max(T a, T b) { return _mm512_max_ps(a, b); }
    static T min(T a, T b) { return _mm512_min_ps(a, b); }
    static T abs(T a) { return _mm512_abs_ps(a); }
    static T round(T a) { return _mm512_roundscale_ps(a, 0); }
    // 2^a for whole a in [-126, 127].
    static T pow2(T a) {
        const __m512i n = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
        return _mm512_castsi512_ps(_mm512_slli_epi32(n, 23));
    }
    // a where x >= limit or x is NaN, else 0.
    static T zero_below(T x, T limit, T a) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), a);
    }
    static float sum(T a) { return _mm512_reduce_add_ps(a); }
    static float largest(T a) { return _mm512_reduce_max_ps(a); }
};

// 16 outputs of an int8 matmul and 64 packed codes (16 rows x 4 k).
struct Tile {
    struct F {
        __m512 v;
    };
    struct I {
        __m512i v;
    };
    struct Q {
        __m512i v;
    };
    static constexpr int kRowsMax = 8;           // rows that share unpacked codes
    static constexpr bool kSignedBytes = false;  // codes of zero point 128 are used as they are

    static Q load(const uint8_t* at) { return {_mm512_loadu_si512(at)}; }
    // Each code's bits kMask of its byte shifted right by kShift (left where that is negative).
    template <int kShift, int kMask>
    static Q bits(Q q) {
        __m512i v = q.v;
        if constexpr (kShift > 0) v = _mm512_srli_epi16(v, kShift);
        if constexpr (kShift < 0) v = _mm512_slli_epi16(v, -kShift);
        return {_mm512_and_si512(v, _mm512_set1_epi8(kMask))};
    }
    static Q either(Q a, Q b) { return {_mm512_or_si512(a.v, b.v)}; }
    static Q load_table(const uint8_t* at) {
        return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)))};
    }
    // Bytes of the table at the places `q`, 0 to 15.
    static Q lookup(Q table, Q q) { return {_mm512_shuffle_epi8(table.v, q.v)}; }
    // Sum over kCount chunks of 4 k; exact for every code and every activation.
    template <int kCount, int kCodeMax>
    static I dot(const Q* q, const int8_t* act) {
        __m512i even = _mm512_setzero_si512();
        __m512i odd = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int c = 0; c < kCount; c += 2) {
            even = _mm512_dpbusd_epi32(even, q[c].v, broadcast(act + 4 * c));
            odd = _mm512_dpbusd_epi32(odd, q[c + 1].v, broadcast(act + 4 * c + 4));
        }
        return {_mm512_add_epi32(even, odd)};
    }
    static __m512i broadcast(const int8_t* at) {
        int32_t word;
        __builtin_memcpy(&word, at, 4);
        return _mm512_set1_epi32(word);
    }
    static I zero_i() { return {_mm512_setzero_si512()}; }
    // a + pair.low * low + pair.high * high
    static I add_pair(I a, int32_t pair, int low, int high) {
        const int factors = static_cast<int>((static_cast<uint32_t>(high) << 16) |
                                             (static_cast<uint32_t>(low) & 0xffffu));
        return {_mm512_dpwssd_epi32(a.v, _mm512_set1_epi32(pair), _mm512_set1_epi32(factors))};
    }
    static F zero() { return {_mm512_setzero_ps()}; }
    static F set1(float a) { return {_mm512_set1_ps(a)}; }
    static F to_f32(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
    static F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
    static F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
    static F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
    static F load_f16(const uint8_t* at) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)))};
    }
    static F load_bf16(const uint8_t* at) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
    }
    static F load_i8(const uint8_t* at) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
    }
    static F load_n(const float* at, uint32_t n) { return {_mm512_maskz_loadu_ps(mask(n), at)}; }
    static void store_n(float* at, F a, uint32_t n) { _mm512_mask_storeu_ps(at, mask(n), a.v); }
    static __mmask16 mask(uint32_t n) {
        return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u);
    }
};

}  // namespace
}  // namespace strata::cpu
