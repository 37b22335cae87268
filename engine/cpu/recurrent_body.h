// Recurrent layers, compiled for the lanes included before: the short convolution, unit vectors,
// the gated delta rule, and the sigmoid gate.
//
// The delta rule of one token, for each value head with its key head's q and k (q scaled):
//   S := decay S;  d = step (v - S^T k);  S := S + k d^T;  o = S^T q
// A work item owns a block of columns of S, which nothing else reads. It goes through the run token
// by token: one pass over the block sums S^T k and S^T q of the state before the token, from which
// d and o = decay S^T q + d (k.q) follow, one pass writes S. Both sums are two chains over even and
// odd keys, so a row's bits depend on nothing but the tokens before it. Bytes moved: each block of
// S once in and out of memory per run (8 KiB at head_dim 128 stay in the first cache).
#pragma once

#include "engine/cpu/recurrent_ops.h"
#include "engine/cpu/vectors_body.h"

namespace strata::cpu {
namespace {

constexpr uint32_t kColumnVectors = kDeltaColumns / V::kWidth;

inline V::T sigmoid_of(V::T x) {
    const V::T one = V::set1(1.0f);
    return V::div(one, V::add(one, exponential(V::sub(V::zero(), x))));
}

// Row `row` of the run in one block of channels; rows before the run come from the ring, positions
// before the sequence are left out.
inline void conv_row(const ConvArgs& a,
                     const StateRun& run,
                     const float* ring,
                     uint32_t row,
                     uint32_t first,
                     uint32_t count) {
    const uint64_t at = uint64_t{run.row + row} * a.channels + first;
    for_vectors(count, [&](uint32_t i, uint32_t n) {
        V::T sum = V::zero();
        for (uint32_t tap = 0; tap < a.tap_count; ++tap) {
            const uint32_t back = (a.tap_count - 1 - tap) * a.dilation;
            if (back > run.position + row) continue;
            const float* source = a.x + at - uint64_t{back} * a.channels;
            if (back > row)
                source =
                    ring + uint64_t{(run.position + row - back) % a.ring_rows} * a.channels + first;
            const float* weight = a.taps + uint64_t{tap} * a.channels + first;
            sum = V::fma(load_part(source + i, n), load_part(weight + i, n), sum);
        }
        store_part(a.out + at + i, V::mul(sum, sigmoid_of(sum)), n);
    });
}

void short_conv(const ConvArgs& a, uint32_t begin, uint32_t end) {
    const uint32_t blocks = (a.channels + kConvBlock - 1) / kConvBlock;
    for (uint32_t item = begin; item < end; ++item) {
        const StateRun& run = a.run.runs[item / blocks];
        const uint32_t first = item % blocks * kConvBlock;
        const uint32_t left = a.channels - first;
        const uint32_t count = left < kConvBlock ? left : kConvBlock;
        float* ring = a.run.state + run.slot * a.run.slot_floats;
        for (uint32_t row = 0; row < run.rows; ++row) conv_row(a, run, ring, row, first, count);
        const uint32_t kept = run.rows < a.ring_rows ? run.rows : a.ring_rows;
        for (uint32_t row = run.rows - kept; row < run.rows; ++row) {
            const uint64_t to = uint64_t{(run.position + row) % a.ring_rows} * a.channels + first;
            const uint64_t from = uint64_t{run.row + row} * a.channels + first;
            __builtin_memcpy(ring + to, a.x + from, count * sizeof(float));
        }
    }
}

// S := decay S + k d^T of one block [dim, kDeltaColumns], from `from` to `to`.
inline void take_in(
    const float* from, float* to, const float* k, const float* delta, float decay, uint32_t dim) {
    V::T d[kColumnVectors];
    for (uint32_t v = 0; v < kColumnVectors; ++v) d[v] = V::load(delta + v * V::kWidth);
    const V::T factor = V::set1(decay);
    for (uint32_t key = 0; key < dim; ++key) {
        const V::T weight = V::set1(k[key]);
        for (uint32_t v = 0; v < kColumnVectors; ++v) {
            const uint32_t at = key * kDeltaColumns + v * V::kWidth;
            V::store(to + at, V::fma(weight, d[v], V::mul(factor, V::load(from + at))));
        }
    }
}

// delta [kDeltaColumns] and out [kDeltaColumns] of one token; S stays as it is.
inline void read_token(const float* state,
                       const float* q,
                       const float* k,
                       const float* values,
                       float decay,
                       float step,
                       float scale,
                       uint32_t dim,
                       float* delta,
                       float* out) {
    V::T by_key[2][kColumnVectors];
    V::T by_query[2][kColumnVectors];
    for (uint32_t odd = 0; odd < 2; ++odd) {
        for (uint32_t v = 0; v < kColumnVectors; ++v) by_key[odd][v] = by_query[odd][v] = V::zero();
    }
    for (uint32_t key = 0; key < dim; key += 2) {
#pragma GCC unroll 2
        for (uint32_t odd = 0; odd < 2; ++odd) {
            const V::T kk = V::set1(k[key + odd]);
            const V::T qq = V::set1(q[key + odd]);
            for (uint32_t v = 0; v < kColumnVectors; ++v) {
                const V::T s = V::load(state + (key + odd) * kDeltaColumns + v * V::kWidth);
                by_key[odd][v] = V::fma(s, kk, by_key[odd][v]);
                by_query[odd][v] = V::fma(s, qq, by_query[odd][v]);
            }
        }
    }
    V::T products = V::zero();
    for (uint32_t i = 0; i < dim; i += V::kWidth)
        products = V::fma(V::load(k + i), V::load(q + i), products);
    const V::T overlap = V::set1(V::sum(products));
    const V::T factor = V::set1(decay);
    for (uint32_t v = 0; v < kColumnVectors; ++v) {
        const V::T known = V::mul(factor, V::add(by_key[0][v], by_key[1][v]));
        const V::T d = V::mul(V::set1(step), V::sub(V::load(values + v * V::kWidth), known));
        const V::T old = V::mul(factor, V::add(by_query[0][v], by_query[1][v]));
        V::store(delta + v * V::kWidth, d);
        V::store(out + v * V::kWidth, V::mul(V::set1(scale), V::fma(d, overlap, old)));
    }
}

struct DeltaItem {
    const StateRun& run;
    uint32_t head, key_head, column;
    bool writes_keys;    // of the log: one item of each key head
    bool writes_decays;  // one item of each value head
};

inline float* log_row(const DeltaArgs& a, float* state, uint32_t log, uint32_t row) {
    return state + a.log_at + (uint64_t{log} * a.log_rows + row) * a.log_row_floats;
}

inline void replay_log(const DeltaArgs& a, const DeltaItem& item, float* state, float* block) {
    for (uint32_t row = 0; row < item.run.replay; ++row) {
        const float* log = log_row(a, state, item.run.log_read, row);
        const float* deltas = log + uint64_t{a.kv_heads} * a.dim;
        const float decay = deltas[uint64_t{a.heads} * a.dim + item.head];
        take_in(block,
                block,
                log + uint64_t{item.key_head} * a.dim,
                deltas + uint64_t{item.head} * a.dim + item.column,
                decay,
                a.dim);
    }
}

inline void write_log(const DeltaArgs& a,
                      const DeltaItem& item,
                      float* log,
                      const float* k,
                      const float* delta,
                      float decay) {
    float* deltas = log + uint64_t{a.kv_heads} * a.dim;
    if (item.writes_keys)
        __builtin_memcpy(log + uint64_t{item.key_head} * a.dim, k, a.dim * sizeof(float));
    if (item.writes_decays) deltas[uint64_t{a.heads} * a.dim + item.head] = decay;
    __builtin_memcpy(
        deltas + uint64_t{item.head} * a.dim + item.column, delta, kDeltaColumns * sizeof(float));
}

inline void run_delta_item(const DeltaArgs& a, const DeltaItem& item) {
    const StateRun& run = item.run;
    const uint32_t keys = a.kv_heads * a.dim;
    const uint32_t width = 2 * keys + a.heads * a.dim;
    float* const state = a.run.state + run.slot * a.run.slot_floats;
    float* const block = state + (uint64_t{item.head} * a.dim + item.column) * a.dim;
    if (run.position == 0) __builtin_memset(block, 0, a.dim * kDeltaColumns * sizeof(float));
    replay_log(a, item, state, block);
    float* to = block;
    for (uint32_t row = 0; row < run.rows; ++row) {
        const float* x = a.x + uint64_t{run.row + row} * width;
        const float* q = x + uint64_t{item.key_head} * a.dim;
        const float* k = q + keys;
        const float* values = x + 2 * keys + uint64_t{item.head} * a.dim + item.column;
        const float* gates = a.gates + uint64_t{run.row + row} * 2 * a.heads + item.head;
        const uint64_t out = (uint64_t{run.row + row} * a.heads + item.head) * a.dim + item.column;
        const float* from = to;
        float delta[kDeltaColumns];
        read_token(
            from, q, k, values, gates[0], gates[a.heads], a.scale, a.dim, delta, a.out + out);
        if (row >= run.commit) {
            to = a.scratch;
            write_log(
                a, item, log_row(a, state, run.log_write, row - run.commit), k, delta, gates[0]);
        }
        if (row < run.commit || row + 1 < run.rows) take_in(from, to, k, delta, gates[0], a.dim);
    }
}

void delta_rule(const DeltaArgs& a, uint32_t begin, uint32_t end) {
    const uint32_t blocks = a.dim / kDeltaColumns;
    const uint32_t ratio = a.heads / a.kv_heads;
    for (uint32_t i = begin; i < end; ++i) {
        const uint32_t head = i / blocks % a.heads;
        const uint32_t column = i % blocks * kDeltaColumns;
        const uint32_t key_head = a.is_tiled ? head % a.kv_heads : head / ratio;
        const bool is_first_of_key = a.is_tiled ? head < a.kv_heads : head % ratio == 0;
        run_delta_item(a,
                       {a.run.runs[i / blocks / a.heads],
                        head,
                        key_head,
                        column,
                        is_first_of_key && column == 0,
                        column == 0});
    }
}

void l2_norm(const L2NormArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        for (uint32_t head = 0; head < a.heads; ++head) {
            float* x = a.x + uint64_t{row} * a.k + head * a.dim;
            V::T squares = V::zero();
            for_vectors(a.dim, [&](uint32_t i, uint32_t n) {
                const V::T v = load_part(x + i, n);
                squares = V::fma(v, v, squares);
            });
            const V::T inverse = V::set1(1.0f / __builtin_sqrtf(V::sum(squares) + 1e-6f));
            for_vectors(a.dim, [&](uint32_t i, uint32_t n) {
                store_part(x + i, V::mul(load_part(x + i, n), inverse), n);
            });
        }
    }
}

void sigmoid_gate(const GateArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        const uint64_t at = uint64_t{row} * a.k;
        for_vectors(a.k, [&](uint32_t i, uint32_t n) {
            const V::T gate = sigmoid_of(load_part(a.y + at + i, n));
            store_part(a.out + at + i, V::mul(load_part(a.x + at + i, n), gate), n);
        });
    }
}

constexpr RecurrentOps kRecurrentOps = {short_conv, delta_rule, l2_norm, sigmoid_gate};

}  // namespace
}  // namespace strata::cpu
