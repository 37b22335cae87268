// Matmul with f32 activations over a weight of any type in the file's layout: a block of 4 weight
// rows is decoded to f32 once per launch, then multiplied with every row of the step.
//
// out[r, o] = sum of two chains of fused multiply-adds over vectors of k (even and odd vectors),
// added lane by lane and then across lanes in a fixed tree: one arithmetic per (row, output).
// Tile: 4 outputs x kMatmulRows rows. Bytes moved: the weight once, activations once per 4 outputs.
#pragma once

#include "engine/cpu/isa_ops.h"
#include "engine/quant/blocks.h"

namespace strata::cpu {
namespace {

// Half-width floats to f32; the vector conversions are exact, as are those of blocks.h.
inline void decode_row(int ggml_type, const uint8_t* row, float* out, uint32_t k) {
    constexpr uint32_t kWidth = V::kWidth;
    const auto* halves = reinterpret_cast<const uint16_t*>(row);
    uint32_t i = 0;
    if (ggml_type == 0) {
        __builtin_memcpy(out, row, uint64_t{k} * sizeof(float));
    } else if (ggml_type == 1) {
        for (; i + kWidth <= k; i += kWidth) V::store(out + i, V::load(halves + i));
        for (; i < k; ++i) out[i] = blocks::f16_to_f32(halves[i]);
    } else if (ggml_type == 30) {
        for (; i + kWidth <= k; i += kWidth) V::store(out + i, V::load_bf16(halves + i));
        for (; i < k; ++i) out[i] = blocks::bf16_to_f32(halves[i]);
    } else {
        blocks::row_to_f32(ggml_type, row, out, k);
    }
}

template <int kRows, int kOutputs>
inline void dot_tile(const MatmulF32Args& a, const float* weights, uint32_t row, uint32_t output) {
    constexpr uint32_t kWidth = V::kWidth;
    V::T acc[kRows][kOutputs][2];
    for (int r = 0; r < kRows; ++r) {
        for (int o = 0; o < kOutputs; ++o) acc[r][o][0] = acc[r][o][1] = V::zero();
    }
    const float* x = a.x + uint64_t{row} * a.k;
    const auto add_vector = [&](uint32_t i, uint32_t n, int chain) {
        V::T w[kOutputs];
        for (int o = 0; o < kOutputs; ++o) {
            const float* at = weights + static_cast<uint64_t>(o) * a.k + i;
            w[o] = n == kWidth ? V::load(at) : V::load_n(at, n);
        }
        for (int r = 0; r < kRows; ++r) {
            const float* at = x + static_cast<uint64_t>(r) * a.k + i;
            const V::T v = n == kWidth ? V::load(at) : V::load_n(at, n);
            for (int o = 0; o < kOutputs; ++o) acc[r][o][chain] = V::fma(w[o], v, acc[r][o][chain]);
        }
    };
    uint32_t i = 0;
    for (; i + 2 * kWidth <= a.k; i += 2 * kWidth) {
        add_vector(i, kWidth, 0);
        add_vector(i + kWidth, kWidth, 1);
    }
    if (i + kWidth <= a.k) {
        add_vector(i, kWidth, 0);
        i += kWidth;
        if (i < a.k) add_vector(i, a.k - i, 1);
    } else if (i < a.k) {
        add_vector(i, a.k - i, 0);
    }
    for (int r = 0; r < kRows; ++r) {
        float* out = a.out + (uint64_t{row} + static_cast<uint32_t>(r)) * a.n + output;
        for (int o = 0; o < kOutputs; ++o) {
            const float sum = V::sum(V::add(acc[r][o][0], acc[r][o][1]));
            out[o] = a.bias ? sum + a.bias[output + static_cast<uint32_t>(o)] : sum;
        }
    }
}

template <int kOutputs>
inline void dot_all_rows(const MatmulF32Args& a, const float* weights, uint32_t output) {
    uint32_t row = 0;
    for (; row + V::kMatmulRows <= a.rows; row += V::kMatmulRows)
        dot_tile<V::kMatmulRows, kOutputs>(a, weights, row, output);
    for (; row < a.rows; ++row) dot_tile<1, kOutputs>(a, weights, row, output);
}

void matmul_f32(const MatmulF32Args& a, uint32_t begin, uint32_t end) {
    for (uint32_t block = begin; block < end; ++block) {
        const uint32_t output = kRowDotOutputs * block;
        const uint32_t count = a.n - output < kRowDotOutputs ? a.n - output : kRowDotOutputs;
        for (uint32_t o = 0; o < count; ++o) {
            decode_row(a.ggml_type,
                       a.weight + (uint64_t{output} + o) * a.row_bytes,
                       a.scratch + uint64_t{o} * a.k,
                       a.k);
        }
        if (count == kRowDotOutputs) {
            dot_all_rows<kRowDotOutputs>(a, a.scratch, output);
        } else {
            for (uint32_t o = 0; o < count; ++o)
                dot_all_rows<1>(a, a.scratch + uint64_t{o} * a.k, output + o);
        }
    }
}

}  // namespace
}  // namespace strata::cpu
