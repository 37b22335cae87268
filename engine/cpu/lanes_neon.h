// Armv8.2 lanes (dot product, half precision) for the kernel bodies. Everything has internal
// linkage.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

namespace strata::cpu {
namespace {

// Vectors of f32.
struct V {
    using T = float32x4_t;
    static constexpr int kWidth = 4;
    static constexpr int kMatmulRows = 2;
    static constexpr int kQueriesMax = 2;
    static constexpr bool kAnyHead = true;

    static T load(const float* at) { return vld1q_f32(at); }
    static T load(const uint16_t* f16) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(f16))); }
    static T load_bf16(const uint16_t* at) {
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(at), 16));
    }
    static T load_n(const float* at, uint32_t n) {
        float lanes[4] = {};
        __builtin_memcpy(lanes, at, n * sizeof(float));
        return vld1q_f32(lanes);
    }
    static void store(float* at, T a) { vst1q_f32(at, a); }
    static void store_n(float* at, T a, uint32_t n) {
        float lanes[4];
        vst1q_f32(lanes, a);
        __builtin_memcpy(at, lanes, n * sizeof(float));
    }
    static void store_f16(uint16_t* at, T a) {
        vst1_u16(at, vreinterpret_u16_f16(vcvt_f16_f32(a)));
    }
    static void store_i8(int8_t* at, T a) {
        const int16x4_t halves = vqmovn_s32(vcvtnq_s32_f32(a));
        const int8x8_t bytes = vqmovn_s16(vcombine_s16(halves, halves));
        const uint32_t word = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
        __builtin_memcpy(at, &word, 4);
    }
    static T zero() { return vdupq_n_f32(0.0f); }
    static T set1(float a) { return vdupq_n_f32(a); }
    static T add(T a, T b) { return vaddq_f32(a, b); }
    static T sub(T a, T b) { return vsubq_f32(a, b); }
    static T mul(T a, T b) { return vmulq_f32(a, b); }
    static T div(T a, T b) { return vdivq_f32(a, b); }
    static T fma(T a, T b, T c) { return vfmaq_f32(c, a, b); }
    static T max(T a, T b) { return vmaxq_f32(a, b); }
    static T min(T a, T b) { return vminq_f32(a, b); }
    static T abs(T a) { return vabsq_f32(a); }
    static T round(T a) { return vrndnq_f32(a); }
    static T pow2(T a) {
        return vreinterpretq_f32_s32(
            vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(a), vdupq_n_s32(127)), 23));
    }
    static T zero_below(T x, T limit, T a) {
        return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a), vcltq_f32(x, limit)));
    }
    static float sum(T a) { return vaddvq_f32(a); }
    static float largest(T a) { return vmaxvq_f32(a); }
};

// 16 outputs of an int8 matmul and 64 packed codes (16 rows x 4 k), as four quarters of 4 rows.
struct Tile {
    struct F {
        float32x4_t v[4];
    };
    struct I {
        int32x4_t v[4];
    };
    struct Q {
        uint8x16_t v[4];
    };
    static constexpr int kRowsMax = 2;
    static constexpr bool kSignedBytes = true;

    template <class Fn>
    static F each(Fn fn) {
        return {{fn(0), fn(1), fn(2), fn(3)}};
    }
    static Q load(const uint8_t* at) {
        return {{vld1q_u8(at), vld1q_u8(at + 16), vld1q_u8(at + 32), vld1q_u8(at + 48)}};
    }
    // Each code's bits kMask of its byte shifted right by kShift (left where that is negative).
    template <int kShift, int kMask>
    static Q bits(const Q& q) {
        Q out;
        for (int i = 0; i < 4; ++i) {
            uint8x16_t v = q.v[i];
            if constexpr (kShift > 0) v = vshrq_n_u8(v, kShift);
            if constexpr (kShift < 0) v = vshlq_n_u8(v, -kShift);
            out.v[i] = vandq_u8(v, vdupq_n_u8(kMask));
        }
        return out;
    }
    static Q either(const Q& a, const Q& b) {
        Q out;
        for (int i = 0; i < 4; ++i) out.v[i] = vorrq_u8(a.v[i], b.v[i]);
        return out;
    }
    static Q load_table(const uint8_t* at) {
        const uint8x16_t table = vld1q_u8(at);
        return {{table, table, table, table}};
    }
    // Bytes of the table at the places `q`, 0 to 15.
    static Q lookup(const Q& table, const Q& q) {
        Q out;
        for (int i = 0; i < 4; ++i) out.v[i] = vqtbl1q_u8(table.v[i], q.v[i]);
        return out;
    }
    // Codes up to 127 are non-negative int8; codes up to 255 become int8 by flipping the top bit.
    template <int kCount, int kCodeMax>
    static I dot(const Q* q, const int8_t* act) {
        I out = zero_i();
#pragma GCC unroll 8
        for (int c = 0; c < kCount; ++c) {
            int32_t word;
            __builtin_memcpy(&word, act + 4 * c, 4);
            const int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(word));
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                uint8x16_t codes = q[c].v[i];
                if constexpr (kCodeMax > 127) codes = veorq_u8(codes, vdupq_n_u8(0x80));
                out.v[i] = vdotq_s32(out.v[i], vreinterpretq_s8_u8(codes), a);
            }
        }
        return out;
    }
    static I zero_i() {
        const int32x4_t zero = vdupq_n_s32(0);
        return {{zero, zero, zero, zero}};
    }
    static I add_pair(const I& a, int32_t pair, int low, int high) {
        const int sum = static_cast<int16_t>(pair & 0xffff) * low + (pair >> 16) * high;
        I out;
        for (int i = 0; i < 4; ++i) out.v[i] = vaddq_s32(a.v[i], vdupq_n_s32(sum));
        return out;
    }
    static F zero() { return set1(0.0f); }
    static F set1(float a) {
        return each([&](int) { return vdupq_n_f32(a); });
    }
    static F to_f32(const I& a) {
        return each([&](int i) { return vcvtq_f32_s32(a.v[i]); });
    }
    static F add(const F& a, const F& b) {
        return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
    }
    static F mul(const F& a, const F& b) {
        return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
    }
    static F fma(const F& a, const F& b, const F& c) {
        return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
    }
    static F load_f16(const uint8_t* at) {
        return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at + 8 * i))); });
    }
    static F widen(int16x8_t low, int16x8_t high) {
        return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
    }
    static F load_bf16(const uint8_t* at) {
        return each([&](int i) {
            const uint16x4_t bits = vreinterpret_u16_u8(vld1_u8(at + 8 * i));
            return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
        });
    }
    static F load_i8(const uint8_t* at) {
        const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(at));
        return widen(vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
    }
    static F load_n(const float* at, uint32_t n) {
        float lanes[16] = {};
        __builtin_memcpy(lanes, at, (n < 16 ? n : 16) * sizeof(float));
        return each([&](int i) { return vld1q_f32(lanes + 4 * i); });
    }
    static void store_n(float* at, const F& a, uint32_t n) {
        float lanes[16];
        for (int i = 0; i < 4; ++i) vst1q_f32(lanes + 4 * i, a.v[i]);
        __builtin_memcpy(at, lanes, (n < 16 ? n : 16) * sizeof(float));
    }
};

}  // namespace
}  // namespace strata::cpu
