// Residual streams (hyper-connections), compiled for the lanes included before. S streams of D
// values a row. A connection reads X and writes it once; between them (bytes and operations of one
// row at S = 4, D = 2560):
//
//   RmsNorm of each stream    n   80 KiB moved, 3 operations a value
//   down, silu, up, inject        the matrices: 2 x S D R + S D S products, R = 320
//   mix    h = 1/S sum sigmoid(a_s) n_s     90 KiB, about 15 operations a value
//   (the layer on h)
//   add    X_s += 2 sigmoid(g_s / S) y      90 KiB, 2 operations a value
//
// The mix joins sigmoid, product and mean, the add joins gate, product and sum: no wide value but n
// and a is written in between. The sums over streams go by ascending stream, so a row's bits depend
// on nothing but the row.
#pragma once

#include "engine/cpu/stream_ops.h"
#include "engine/cpu/vectors_body.h"

namespace strata::cpu {
namespace {

inline V::T sigmoid_lanes(V::T x) {
    const V::T one = V::set1(1.0f);
    return V::div(one, V::add(one, exponential(V::sub(V::zero(), x))));
}

// Of one number, by the same lanes.
inline float sigmoid_of_one(float x) {
    float lanes[V::kWidth];
    V::store(lanes, sigmoid_lanes(V::set1(x)));
    return lanes[0];
}

void silu(const SiluArgs& a, uint32_t begin, uint32_t end) {
    const V::T scale = V::set1(a.scale);
    for (uint32_t row = begin; row < end; ++row) {
        const uint64_t at = uint64_t{row} * a.width;
        for_vectors(a.width, [&](uint32_t i, uint32_t n) {
            const V::T x = V::mul(load_part(a.x + at + i, n), scale);
            const V::T divisor = V::add(V::set1(1.0f), exponential(V::sub(V::zero(), x)));
            store_part(a.out + at + i, V::div(x, divisor), n);
        });
    }
}

// x, y [rows, streams, width] -> out [rows, width].
void mix(const StreamArgs& a, uint32_t begin, uint32_t end) {
    const V::T share = V::set1(1.0f / static_cast<float>(a.streams));
    for (uint32_t row = begin; row < end; ++row) {
        const uint64_t at = uint64_t{row} * a.streams * a.width;
        for_vectors(a.width, [&](uint32_t i, uint32_t n) {
            V::T sum = V::zero();
            for (uint32_t s = 0; s < a.streams; ++s) {
                const uint64_t from = at + uint64_t{s} * a.width + i;
                const V::T gate = sigmoid_lanes(load_part(a.y + from, n));
                sum = V::fma(gate, load_part(a.x + from, n), sum);
            }
            store_part(a.out + uint64_t{row} * a.width + i, V::mul(sum, share), n);
        });
    }
}

// out [rows, streams, width] += 2 sigmoid(y / streams) x; x [rows, width], y [rows, streams].
void add_to_streams(const StreamArgs& a, uint32_t begin, uint32_t end) {
    const float share = 1.0f / static_cast<float>(a.streams);
    for (uint32_t row = begin; row < end; ++row) {
        for (uint32_t s = 0; s < a.streams; ++s) {
            const uint64_t index = uint64_t{row} * a.streams + s;
            const V::T gate = V::set1(2.0f * sigmoid_of_one(a.y[index] * share));
            const float* x = a.x + uint64_t{row} * a.width;
            float* out = a.out + index * a.width;
            for_vectors(a.width, [&](uint32_t i, uint32_t n) {
                const V::T sum = V::fma(gate, load_part(x + i, n), load_part(out + i, n));
                store_part(out + i, sum, n);
            });
        }
    }
}

// Root of both signs, bounded away from 0 but at it.
inline float signed_root(float t) {
    const float size = t < 0 ? -t : t;
    const float root = __builtin_sqrtf(size < 1e-6f ? 1e-6f : size);  // NaN stays
    if (t == 0) return 0;
    return t < 0 ? -root : root;
}

// x, y [rows, streams, width] -> out [rows, streams].
void scores(const StreamArgs& a, uint32_t begin, uint32_t end) {
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(a.width));
    for (uint32_t row = begin; row < end; ++row) {
        for (uint32_t s = 0; s < a.streams; ++s) {
            const uint64_t index = uint64_t{row} * a.streams + s;
            const float* x = a.x + index * a.width;
            const float* y = a.y + index * a.width;
            V::T products = V::zero();
            for_vectors(a.width, [&](uint32_t i, uint32_t n) {
                products = V::fma(load_part(x + i, n), load_part(y + i, n), products);
            });
            a.out[index] = sigmoid_of_one(signed_root(V::sum(products) * scale));
        }
    }
}

// x [rows, width], y [rows, streams] -> out [rows, streams, width].
void scale_to_streams(const StreamArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        for (uint32_t s = 0; s < a.streams; ++s) {
            const uint64_t index = uint64_t{row} * a.streams + s;
            const V::T factor = V::set1(a.y[index]);
            const float* x = a.x + uint64_t{row} * a.width;
            float* out = a.out + index * a.width;
            for_vectors(a.width, [&](uint32_t i, uint32_t n) {
                store_part(out + i, V::mul(factor, load_part(x + i, n)), n);
            });
        }
    }
}

constexpr StreamOps kStreamOps = {silu, mix, add_to_streams, scores, scale_to_streams};

}  // namespace
}  // namespace strata::cpu
