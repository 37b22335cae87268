// Operations that work on one row at a time: norm, rounding to int8, rope, KV append, SwiGlu, add.
// Each reads and writes its row once; sums run over vectors in ascending order, then across lanes
// in a fixed tree.
#pragma once

#include "engine/cpu/isa_ops.h"
#include "engine/cpu/vectors_body.h"
#include "engine/quant/blocks.h"

namespace strata::cpu {
namespace {

// x / sqrt(mean(x^2) + eps) * gain, for one group.
inline void norm_group(const float* x, const float* gain, float* out, uint32_t group, float eps) {
    V::T squares = V::zero();
    for_vectors(group, [&](uint32_t i, uint32_t n) {
        const V::T v = load_part(x + i, n);
        squares = V::fma(v, v, squares);
    });
    const float mean = V::sum(squares) / static_cast<float>(group);
    const V::T inverse = V::set1(1.0f / __builtin_sqrtf(mean + eps));
    for_vectors(group, [&](uint32_t i, uint32_t n) {
        const V::T v = V::mul(load_part(x + i, n), inverse);
        store_part(out + i, V::mul(v, load_part(gain + i, n)), n);
    });
}

inline void norm_row(const NormArgs& a, const float* x, float* out) {
    const float* gain = a.gain;
    for (uint32_t at = 0; at < a.k; at += a.group, gain += a.gain_step)
        norm_group(x + at, gain, out + at, a.group, a.eps);
}

void rms_norm(const NormArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row)
        norm_row(a, a.x + uint64_t{row} * a.k, a.out + uint64_t{row} * a.k);
}

// One block of 32 as quantize.h describes it.
inline void quantize_block(const float* x, int8_t* values, float* scale, int32_t* sums) {
    constexpr int kVectors = 32 / V::kWidth;
    V::T v[kVectors];
    V::T largest = V::zero();
    V::T fault = V::zero();  // stays 0 for finite values, else NaN
    for (int i = 0; i < kVectors; ++i) {
        v[i] = V::load(x + i * V::kWidth);
        largest = V::max(V::abs(v[i]), largest);
        fault = V::fma(v[i], V::zero(), fault);
    }
    const float most = V::largest(largest);
    const bool is_zero = most < 1e-35f;
    *scale = (is_zero ? 0.0f : most / 127.0f) + V::sum(fault);
    const V::T inverse = V::set1(is_zero ? 0.0f : 127.0f / most);
    float halves[2] = {0.0f, 0.0f};  // whole numbers below 2^12, so that every order is exact
    for (int i = 0; i < kVectors; ++i) {
        // The constant comes second: a NaN in the first operand is dropped.
        V::T q = V::max(V::mul(v[i], inverse), V::set1(-127.0f));
        q = V::round(V::min(q, V::set1(127.0f)));
        V::store_i8(values + i * V::kWidth, q);
        halves[i / (kVectors / 2)] += V::sum(q);
    }
    const bool is_finite = *scale == *scale;
    const auto low = static_cast<uint32_t>(is_finite ? static_cast<int32_t>(halves[0]) : 0);
    const auto high = static_cast<uint32_t>(is_finite ? static_cast<int32_t>(halves[1]) : 0);
    *sums = static_cast<int32_t>((high << 16) | (low & 0xffffu));
}

inline void quantize_row(const QuantizeArgs& a, const float* x, uint32_t row) {
    const uint32_t groups = a.k / 32;
    for (uint32_t g = 0; g < groups; ++g) {
        const uint64_t at = uint64_t{row} * groups + g;
        quantize_block(x + 32u * g, a.values + 32u * at, a.scales + at, a.sums + at);
    }
}

void quantize(const QuantizeArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) quantize_row(a, a.x + uint64_t{row} * a.k, row);
}

void rms_norm_quantize(const NormArgs& norm, const QuantizeArgs& q, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        norm_row(norm, norm.x + uint64_t{row} * norm.k, norm.out);
        quantize_row(q, norm.out, row);
    }
}

// cos and sin of position * frequency. The product and the reduction to [-pi/4, pi/4] are in f64:
// in f32 a position of 100 000 would be off by hundredths of a radian. Taylor series to r^13 and
// r^14 (remainder below 1e-13).
inline void rope_angles(
    uint32_t position, const float* frequencies, uint32_t pairs, float* cosines, float* sines) {
    for (uint32_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(position) * static_cast<double>(frequencies[i]);
        // Adding 1.5 * 2^52 rounds to a whole number of quarter turns, which the low bits hold.
        const double shifted = angle * 0.63661977236758134308 + 6755399441055744.0;
        const double turns = shifted - 6755399441055744.0;
        double r = angle - turns * 1.57079632679489655800;
        r = r - turns * 6.12323399573676603587e-17;
        const double s = r * r;
        double sine = 1.0 / 6227020800.0;
        sine = -1.0 / 39916800.0 + s * sine;
        sine = 1.0 / 362880.0 + s * sine;
        sine = -1.0 / 5040.0 + s * sine;
        sine = 1.0 / 120.0 + s * sine;
        sine = -1.0 / 6.0 + s * sine;
        sine = r + r * (s * sine);
        double cosine = -1.0 / 87178291200.0;
        cosine = 1.0 / 479001600.0 + s * cosine;
        cosine = -1.0 / 3628800.0 + s * cosine;
        cosine = 1.0 / 40320.0 + s * cosine;
        cosine = -1.0 / 720.0 + s * cosine;
        cosine = 1.0 / 24.0 + s * cosine;
        cosine = -0.5 + s * cosine;
        cosine = 1.0 + s * cosine;
        const auto quarter = __builtin_bit_cast(uint64_t, shifted);
        const bool is_swapped = (quarter & 1u) != 0;
        const double sine_sign = (quarter & 2u) != 0 ? -1.0 : 1.0;
        const double cosine_sign = ((quarter + 1u) & 2u) != 0 ? -1.0 : 1.0;
        sines[i] = static_cast<float>(sine_sign * (is_swapped ? cosine : sine));
        cosines[i] = static_cast<float>(cosine_sign * (is_swapped ? sine : cosine));
    }
}

inline void rotate_head(
    float* head, uint32_t pairs, bool is_neox, const float* cosines, const float* sines) {
    if (is_neox) {
        for (uint32_t i = 0; i < pairs; ++i) {
            const float a = head[i];
            const float b = head[i + pairs];
            head[i] = a * cosines[i] - b * sines[i];
            head[i + pairs] = a * sines[i] + b * cosines[i];
        }
    } else {
        for (uint32_t i = 0; i < pairs; ++i) {
            const float a = head[2 * i];
            const float b = head[2 * i + 1];
            head[2 * i] = a * cosines[i] - b * sines[i];
            head[2 * i + 1] = a * sines[i] + b * cosines[i];
        }
    }
}

void rope(const RopeArgs& a, uint32_t begin, uint32_t end) {
    float cosines[kRopePairsMax];
    float sines[kRopePairsMax];
    const uint32_t pairs = a.rope_dims / 2;
    for (uint32_t row = begin; row < end; ++row) {
        rope_angles(a.positions[row], a.frequencies, pairs, cosines, sines);
        for (uint32_t i = 0; i < pairs; ++i) {  // by 1, which changes no bit, in most models
            cosines[i] *= a.magnitude;
            sines[i] *= a.magnitude;
        }
        float* x = a.x + uint64_t{row} * a.heads * a.head_dim;
        for (uint32_t head = 0; head < a.heads; ++head)
            rotate_head(x + uint64_t{head} * a.head_dim, pairs, a.is_neox, cosines, sines);
    }
}

// Elements of a page, converted on the way in; f16 rounds to nearest even.
inline void to_elements(const float* from, float* to, uint32_t count) {
    __builtin_memcpy(to, from, count * sizeof(float));
}

inline void to_elements(const float* from, uint16_t* to, uint32_t count) {
    uint32_t i = 0;
    for (; i + V::kWidth <= count; i += V::kWidth) V::store_f16(to + i, V::load(from + i));
    for (; i < count; ++i) to[i] = blocks::f32_to_f16(from[i]);
}

// First element of `kv_head` of the page that holds `position` of the row's sequence.
inline uint64_t page_at(const KvArgs& kv, uint32_t row, uint32_t page_index, uint32_t kv_head) {
    const uint64_t table = uint64_t{kv.sequences[row]} * kv.page_table_stride;
    const uint64_t page = kv.page_tables[table + page_index];
    return (page * kv.kv_heads + kv_head) * kv.head_dim * kPage;
}

template <class E>
inline void append_row(const KvAppendArgs& a, uint32_t row) {
    const uint32_t token = a.kv.positions[row] % kPage;
    const uint32_t dim = a.kv.head_dim;
    for (uint32_t head = 0; head < a.kv.kv_heads; ++head) {
        const uint64_t page = page_at(a.kv, row, a.kv.positions[row] / kPage, head);
        const uint64_t from = (uint64_t{row} * a.kv.kv_heads + head) * dim;
        E converted[kHeadDimMax];
        to_elements(a.k + from, converted, dim);
        E* keys = static_cast<E*>(a.kv.k) + page + token;
        for (uint32_t d = 0; d < dim; ++d) keys[d * kPage] = converted[d];
        to_elements(a.v + from, static_cast<E*>(a.kv.v) + page + token * dim, dim);
    }
}

void kv_append(const KvAppendArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        if (a.kv.is_f32) {
            append_row<float>(a, row);
        } else {
            append_row<uint16_t>(a, row);
        }
    }
}

void swiglu(const PairArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        const uint64_t at = uint64_t{row} * a.k;
        for_vectors(a.k, [&](uint32_t i, uint32_t n) {
            const V::T gate = load_part(a.x + at + i, n);
            const V::T up = load_part(a.y + at + i, n);
            const V::T one = V::set1(1.0f);
            const V::T divisor = V::add(one, exponential(V::sub(V::zero(), gate)));
            store_part(a.out + at + i, V::mul(V::div(gate, divisor), up), n);
        });
    }
}

void add(const PairArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        const uint64_t at = uint64_t{row} * a.k;
        for_vectors(a.k, [&](uint32_t i, uint32_t n) {
            const V::T sum = V::add(load_part(a.out + at + i, n), load_part(a.y + at + i, n));
            store_part(a.out + at + i, sum, n);
        });
    }
}

}  // namespace
}  // namespace strata::cpu
