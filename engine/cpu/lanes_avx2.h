// AVX2 + FMA + F16C lanes for the kernel bodies. Everything has internal linkage.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace strata::cpu {
namespace {

// Masks of the first n of 8 lanes: load at kFirst + 8 - n.
alignas(32) constexpr int32_t kFirst[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

// Vectors of f32.
struct V {
    using T = __m256;
    static constexpr int kWidth = 8;
    static constexpr int kMatmulRows = 1;
    static constexpr int kQueriesMax = 2;
    static constexpr bool kAnyHead = true;

    static __m256i first(uint32_t n) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirst + 8 - n));
    }
    static T load(const float* at) { return _mm256_loadu_ps(at); }
    static T load(const uint16_t* f16) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(f16)));
    }
    static T load_bf16(const uint16_t* at) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    static T load_n(const float* at, uint32_t n) { return _mm256_maskload_ps(at, first(n)); }
    static void store(float* at, T a) { _mm256_storeu_ps(at, a); }
    static void store_n(float* at, T a, uint32_t n) { _mm256_maskstore_ps(at, first(n), a); }
    static void store_f16(uint16_t* at, T a) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at),
                         _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static void store_i8(int8_t* at, T a) {
        const __m256i words = _mm256_cvtps_epi32(a);
        const __m128i halves =
            _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm_packs_epi16(halves, halves));
    }
    static T zero() { return _mm256_setzero_ps(); }
    static T set1(float a) { return _mm256_set1_ps(a); }
    static T add(T a, T b) { return _mm256_add_ps(a, b); }
    static T sub(T a, T b) { return _mm256_sub_ps(a, b); }
    static T mul(T a, T b) { return _mm256_mul_ps(a, b); }
    static T div(T a, T b) { return _mm256_div_ps(a, b); }
    static T fma(T a, T b, T c) { return _mm256_fmadd_ps(a, b, c); }
    static T max(T a, T b) { return _mm256_max_ps(a, b); }
    static T min(T a, T b) { return _mm256_min_ps(a, b); }
    static T abs(T a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    static T round(T a) {
        return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static T pow2(T a) {
        const __m256i n = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
    }
    static T zero_below(T x, T limit, T a) {
        return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), a);
    }
    static float sum(T a) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
    }
    static float largest(T a) {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
    }
};

// 16 outputs of an int8 matmul and 64 packed codes (16 rows x 4 k), as two halves of 8 rows.
struct Tile {
    struct F {
        __m256 v[2];
    };
    struct I {
        __m256i v[2];
    };
    struct Q {
        __m256i v[2];
    };
    static constexpr int kRowsMax = 4;
    static constexpr bool kSignedBytes = true;  // codes of zero point 128 are made signed in dot()

    static Q load(const uint8_t* at) {
        const auto* halves = reinterpret_cast<const __m256i*>(at);
        return {{_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)}};
    }
    // Each code's bits kMask of its byte shifted right by kShift (left where that is negative).
    template <int kShift, int kMask>
    static Q bits(Q q) {
        const __m256i mask = _mm256_set1_epi8(kMask);
        for (__m256i& v : q.v) {
            if constexpr (kShift > 0) v = _mm256_srli_epi16(v, kShift);
            if constexpr (kShift < 0) v = _mm256_slli_epi16(v, -kShift);
            v = _mm256_and_si256(v, mask);
        }
        return q;
    }
    static Q either(Q a, Q b) {
        return {{_mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1])}};
    }
    static Q load_table(const uint8_t* at) {
        const __m256i table =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        return {{table, table}};
    }
    // Bytes of the table at the places `q`, 0 to 15.
    static Q lookup(Q table, Q q) {
        return {{_mm256_shuffle_epi8(table.v[0], q.v[0]), _mm256_shuffle_epi8(table.v[1], q.v[1])}};
    }
    // Two products of a pair are added in int16: at most 2 * kCodeMax * 127. So many pairs fit an
    // int16 before they must be widened.
    template <int kCodeMax>
    static constexpr int pairs_in_i16() {
        return kCodeMax > 127 ? 1 : 32767 / (2 * kCodeMax * 127);
    }
    template <int kCodeMax>
    static __m256i pair_products(__m256i codes, __m256i act) {
        if constexpr (kCodeMax > 127) {
            // |w| <= 128 and |a| <= 127, so two products stay below 2^15; with codes up to 255
            // the instruction would saturate.
            const __m256i w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
            return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(act, w));
        } else {
            return _mm256_maddubs_epi16(codes, act);
        }
    }
    template <int kCount, int kCodeMax>
    static I dot(const Q* q, const int8_t* act) {
        constexpr int kRun = pairs_in_i16<kCodeMax>() < kCount ? pairs_in_i16<kCodeMax>() : kCount;
        const __m256i ones = _mm256_set1_epi16(1);
        I total = zero_i();
#pragma GCC unroll 8
        for (int begin = 0; begin < kCount; begin += kRun) {
            __m256i narrow[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
            const int end = begin + kRun < kCount ? begin + kRun : kCount;
#pragma GCC unroll 8
            for (int c = begin; c < end; ++c) {
                const __m256i a = broadcast(act + 4 * c);
                narrow[0] = _mm256_add_epi16(narrow[0], pair_products<kCodeMax>(q[c].v[0], a));
                narrow[1] = _mm256_add_epi16(narrow[1], pair_products<kCodeMax>(q[c].v[1], a));
            }
            total.v[0] = _mm256_add_epi32(total.v[0], _mm256_madd_epi16(narrow[0], ones));
            total.v[1] = _mm256_add_epi32(total.v[1], _mm256_madd_epi16(narrow[1], ones));
        }
        return total;
    }
    static __m256i broadcast(const int8_t* at) {
        int32_t word;
        __builtin_memcpy(&word, at, 4);
        return _mm256_set1_epi32(word);
    }
    static I zero_i() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
    static I add_pair(I a, int32_t pair, int low, int high) {
        const int factors = static_cast<int>((static_cast<uint32_t>(high) << 16) |
                                             (static_cast<uint32_t>(low) & 0xffffu));
        const __m256i sum = _mm256_madd_epi16(_mm256_set1_epi32(pair), _mm256_set1_epi32(factors));
        return {{_mm256_add_epi32(a.v[0], sum), _mm256_add_epi32(a.v[1], sum)}};
    }
    static F zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
    static F set1(float a) { return {{_mm256_set1_ps(a), _mm256_set1_ps(a)}}; }
    static F to_f32(I a) { return {{_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}}; }
    static F add(F a, F b) {
        return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}};
    }
    static F mul(F a, F b) {
        return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}};
    }
    static F fma(F a, F b, F c) {
        return {{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
    }
    static F load_f16(const uint8_t* at) {
        const auto* halves = reinterpret_cast<const __m128i*>(at);
        return {{_mm256_cvtph_ps(_mm_loadu_si128(halves)),
                 _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))}};
    }
    static F load_bf16(const uint8_t* at) {
        const auto* halves = reinterpret_cast<const uint16_t*>(at);
        return {{V::load_bf16(halves), V::load_bf16(halves + 8)}};
    }
    static F load_i8(const uint8_t* at) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))}};
    }
    static F load_n(const float* at, uint32_t n) {
        if (n >= 8) return {{_mm256_loadu_ps(at), V::load_n(at + 8, n - 8)}};
        return {{V::load_n(at, n), _mm256_setzero_ps()}};
    }
    static void store_n(float* at, F a, uint32_t n) {
        V::store_n(at, a.v[0], n < 8 ? n : 8);
        if (n > 8) V::store_n(at + 8, a.v[1], n - 8);
    }
};

}  // namespace
}  // namespace strata::cpu
