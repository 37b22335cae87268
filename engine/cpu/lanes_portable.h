// Lanes in plain C++, for processors without the instruction sets that we have files for. There is
// no fused multiply-add here: a * b + c rounds twice.
#pragma once

#include <stdint.h>

#include "engine/quant/blocks.h"

namespace strata::cpu {
namespace {

// Vectors of f32.
struct V {
    struct T {
        float v[8];
    };
    static constexpr int kWidth = 8;
    static constexpr int kMatmulRows = 1;
    static constexpr int kQueriesMax = 1;
    static constexpr bool kAnyHead = true;

    template <class Fn>
    static T each(Fn fn) {
        T out;
        for (int i = 0; i < kWidth; ++i) out.v[i] = fn(i);
        return out;
    }
    static T load(const float* at) {
        return each([&](int i) { return at[i]; });
    }
    static T load(const uint16_t* f16) {
        return each([&](int i) { return blocks::f16_to_f32(f16[i]); });
    }
    static T load_bf16(const uint16_t* at) {
        return each([&](int i) { return blocks::bf16_to_f32(at[i]); });
    }
    static T load_n(const float* at, uint32_t n) {
        return each([&](int i) { return static_cast<uint32_t>(i) < n ? at[i] : 0.0f; });
    }
    static void store(float* at, const T& a) {
        for (int i = 0; i < kWidth; ++i) at[i] = a.v[i];
    }
    static void store_n(float* at, const T& a, uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) at[i] = a.v[i];
    }
    static void store_f16(uint16_t* at, const T& a) {
        for (int i = 0; i < kWidth; ++i) at[i] = blocks::f32_to_f16(a.v[i]);
    }
    static void store_i8(int8_t* at, const T& a) {
        // A NaN has no int8; its block's scale is NaN, so the code does not matter.
        for (int i = 0; i < kWidth; ++i)
            at[i] = a.v[i] == a.v[i] ? static_cast<int8_t>(a.v[i]) : int8_t{0};
    }
    static T zero() { return set1(0.0f); }
    static T set1(float a) {
        return each([&](int) { return a; });
    }
    static T add(const T& a, const T& b) {
        return each([&](int i) { return a.v[i] + b.v[i]; });
    }
    static T sub(const T& a, const T& b) {
        return each([&](int i) { return a.v[i] - b.v[i]; });
    }
    static T mul(const T& a, const T& b) {
        return each([&](int i) { return a.v[i] * b.v[i]; });
    }
    static T div(const T& a, const T& b) {
        return each([&](int i) { return a.v[i] / b.v[i]; });
    }
    static T fma(const T& a, const T& b, const T& c) {
        return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
    }
    static T max(const T& a, const T& b) {
        return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
    }
    static T min(const T& a, const T& b) {
        return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
    }
    static T abs(const T& a) {
        return each([&](int i) { return __builtin_fabsf(a.v[i]); });
    }
    // Adding 1.5 * 2^23 leaves no fraction bits, rounded to even; for |a| < 2^22.
    static T round(const T& a) {
        return each([&](int i) { return (a.v[i] + 12582912.0f) - 12582912.0f; });
    }
    static T pow2(const T& a) {
        return each([&](int i) {
            const int n = a.v[i] == a.v[i] ? static_cast<int>(a.v[i]) : 0;
            return blocks::bits_to_f32(static_cast<uint32_t>(n + 127) << 23);
        });
    }
    static T zero_below(const T& x, const T& limit, const T& a) {
        return each([&](int i) { return x.v[i] < limit.v[i] ? 0.0f : a.v[i]; });
    }
    static float sum(const T& a) {
        return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
    }
    static float largest(const T& a) {
        float out = a.v[0];
        for (int i = 1; i < kWidth; ++i) out = a.v[i] > out ? a.v[i] : out;
        return out;
    }
};

// 16 outputs of an int8 matmul and 64 packed codes (16 rows x 4 k).
struct Tile {
    struct F {
        float v[16];
    };
    struct I {
        int32_t v[16];
    };
    struct Q {
        uint8_t v[64];
    };
    static constexpr int kRowsMax = 2;
    static constexpr bool kSignedBytes = false;

    template <class Fn>
    static F each(Fn fn) {
        F out;
        for (int i = 0; i < 16; ++i) out.v[i] = fn(i);
        return out;
    }
    static Q load(const uint8_t* at) {
        Q out;
        __builtin_memcpy(out.v, at, 64);
        return out;
    }
    // Each code's bits kMask of its byte shifted right by kShift (left where that is negative).
    template <int kShift, int kMask>
    static Q bits(const Q& q) {
        Q out;
        for (int i = 0; i < 64; ++i) {
            constexpr int kRight = kShift < 0 ? 0 : kShift;
            out.v[i] = static_cast<uint8_t>(((q.v[i] << (kRight - kShift)) >> kRight) & kMask);
        }
        return out;
    }
    static Q either(const Q& a, const Q& b) {
        Q out;
        for (int i = 0; i < 64; ++i) out.v[i] = static_cast<uint8_t>(a.v[i] | b.v[i]);
        return out;
    }
    static Q load_table(const uint8_t* at) {
        Q out;
        for (int i = 0; i < 64; ++i) out.v[i] = at[i % 16];
        return out;
    }
    // Bytes of the table at the places `q`, 0 to 15.
    static Q lookup(const Q& table, const Q& q) {
        Q out;
        for (int i = 0; i < 64; ++i) out.v[i] = table.v[q.v[i] % 16];
        return out;
    }
    template <int kCount, int kCodeMax>
    static I dot(const Q* q, const int8_t* act) {
        I out = zero_i();
        for (int c = 0; c < kCount; ++c) {
            for (int i = 0; i < 16; ++i) {
                for (int j = 0; j < 4; ++j) out.v[i] += q[c].v[4 * i + j] * act[4 * c + j];
            }
        }
        return out;
    }
    static I zero_i() {
        I out;
        for (int i = 0; i < 16; ++i) out.v[i] = 0;
        return out;
    }
    static I add_pair(const I& a, int32_t pair, int low, int high) {
        const int sum = static_cast<int16_t>(pair & 0xffff) * low + (pair >> 16) * high;
        I out;
        for (int i = 0; i < 16; ++i) out.v[i] = a.v[i] + sum;
        return out;
    }
    static F zero() { return set1(0.0f); }
    static F set1(float a) {
        return each([&](int) { return a; });
    }
    static F to_f32(const I& a) {
        return each([&](int i) { return static_cast<float>(a.v[i]); });
    }
    static F add(const F& a, const F& b) {
        return each([&](int i) { return a.v[i] + b.v[i]; });
    }
    static F mul(const F& a, const F& b) {
        return each([&](int i) { return a.v[i] * b.v[i]; });
    }
    static F fma(const F& a, const F& b, const F& c) {
        return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
    }
    static F load_f16(const uint8_t* at) {
        return each([&](int i) { return blocks::f16_to_f32(blocks::read_u16(at + 2 * i)); });
    }
    static F load_bf16(const uint8_t* at) {
        return each([&](int i) { return blocks::bf16_to_f32(blocks::read_u16(at + 2 * i)); });
    }
    static F load_i8(const uint8_t* at) {
        return each([&](int i) { return static_cast<float>(static_cast<int8_t>(at[i])); });
    }
    static F load_n(const float* at, uint32_t n) {
        return each([&](int i) { return static_cast<uint32_t>(i) < n ? at[i] : 0.0f; });
    }
    static void store_n(float* at, const F& a, uint32_t n) {
        for (uint32_t i = 0; i < n && i < 16; ++i) at[i] = a.v[i];
    }
};

}  // namespace
}  // namespace strata::cpu
