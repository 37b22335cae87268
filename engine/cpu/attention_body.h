// Paged causal attention with grouped query heads and an online softmax.
//
// Each (row, head) is a query. It visits the pages of its sequence in order from position 0; per
// page of 32 tokens: scores = q . K (a chain of fused multiply-adds over head_dim per token), new
// maximum, weights = e^(score - maximum), then sums and accumulators are scaled and the page's
// values added token by token. That is the only arithmetic of a query: tiles only decide which
// queries load a page together, and a query never touches tokens beyond its own position.
// Tile: up to kQueriesMax queries x 32 lanes (tokens for scores, dimensions for values). Bytes
// moved: K and V of the sequence once per work item, which is a block of rows of one kv_head.
#pragma once

#include "engine/cpu/rows_body.h"

namespace strata::cpu {
namespace {

static_assert(V::kQueriesMax <= static_cast<int>(kQueryTileMax), "scratch holds a tile");
constexpr int kPageVectors = static_cast<int>(kPage) / V::kWidth;

// State of the queries of one work item, in scratch memory.
struct Queries {
    float* q;       // [queries, head_dim], times the scale
    float* acc;     // [queries, head_dim]
    float* sum;     // [queries, 32] lanes of the softmax's denominator
    float* most;    // [queries] largest score so far
    float* weight;  // [kQueryTileMax, 32] of the current page
};

// acc[q][:] += a[q][i] * b[i][:] for i in [0, count), kVectors vectors wide.
template <int kQueries, int kVectors, class E>
inline void multiply_tile(const float* a,
                          uint32_t a_stride,
                          uint32_t count,
                          const E* b,
                          uint32_t b_stride,
                          V::T (*acc)[kVectors]) {
    for (uint32_t i = 0; i < count; ++i) {
        V::T lanes[kVectors];
        for (int j = 0; j < kVectors; ++j)
            lanes[j] = V::load(b + uint64_t{i} * b_stride + j * V::kWidth);
        for (int q = 0; q < kQueries; ++q) {
            const V::T factor = V::set1(a[static_cast<uint32_t>(q) * a_stride + i]);
            for (int j = 0; j < kVectors; ++j) acc[q][j] = V::fma(factor, lanes[j], acc[q][j]);
        }
    }
}

constexpr uint32_t kWholePage = 0xffffffffu;

// Softmax weights of one query for one page, of whose tokens the bits of `mask` count; returns the
// factor for what was summed before.
inline float weigh_page(const V::T* scores, uint32_t mask, float* most, float* sum, float* weight) {
    V::T s[kPageVectors];
    for (int j = 0; j < kPageVectors; ++j) s[j] = scores[j];
    if (mask != kWholePage) {
        for (int j = 0; j < kPageVectors; ++j) V::store(weight + j * V::kWidth, s[j]);
        for (uint32_t t = 0; t < kPage; ++t)
            if ((mask >> t & 1u) == 0) weight[t] = -__builtin_inff();
        for (int j = 0; j < kPageVectors; ++j) s[j] = V::load(weight + j * V::kWidth);
    }
    V::T largest = s[0];
    for (int j = 1; j < kPageVectors; ++j) largest = V::max(largest, s[j]);
    const float page_most = V::largest(largest);
    float factor = 1.0f;
    if (page_most > *most) {
        float lanes[V::kWidth];
        V::store(lanes, exponential(V::set1(*most - page_most)));
        factor = lanes[0];
        *most = page_most;
    }
    const V::T base = V::set1(*most);
    for (int j = 0; j < kPageVectors; ++j) {
        const V::T w = exponential(V::sub(s[j], base));
        V::store(weight + j * V::kWidth, w);
        const V::T before = V::load(sum + j * V::kWidth);
        V::store(sum + j * V::kWidth, V::fma(before, V::set1(factor), w));
    }
    return factor;
}

template <int kQueries, int kVectors, class E>
inline void add_values(const Queries& s,
                       uint32_t first,
                       uint32_t dim,
                       uint32_t tokens,
                       const E* v,
                       const float* factors) {
    for (uint32_t d = 0; d < dim; d += kVectors * V::kWidth) {
        V::T acc[kQueries][kVectors];
        for (int q = 0; q < kQueries; ++q) {
            const float* at = s.acc + (uint64_t{first} + static_cast<uint32_t>(q)) * dim + d;
            for (int j = 0; j < kVectors; ++j)
                acc[q][j] = V::mul(V::load(at + j * V::kWidth), V::set1(factors[q]));
        }
        multiply_tile<kQueries, kVectors>(s.weight, kPage, tokens, v + d, dim, acc);
        for (int q = 0; q < kQueries; ++q) {
            float* at = s.acc + (uint64_t{first} + static_cast<uint32_t>(q)) * dim + d;
            for (int j = 0; j < kVectors; ++j) V::store(at + j * V::kWidth, acc[q][j]);
        }
    }
}

// Queries [first, first + kQueries) take tokens of one page, not 0: the bits of `mask`.
template <int kQueries, class E>
inline void visit_page(
    const Queries& s, uint32_t first, uint32_t dim, uint32_t mask, const E* k, const E* v) {
    V::T scores[kQueries][kPageVectors];
    for (int q = 0; q < kQueries; ++q) {
        for (int j = 0; j < kPageVectors; ++j) scores[q][j] = V::zero();
    }
    multiply_tile<kQueries, kPageVectors>(s.q + uint64_t{first} * dim, dim, dim, k, kPage, scores);
    float factors[kQueries];
    for (int q = 0; q < kQueries; ++q) {
        const uint32_t at = first + static_cast<uint32_t>(q);
        factors[q] = weigh_page(scores[q],
                                mask,
                                s.most + at,
                                s.sum + uint64_t{at} * kPage,
                                s.weight + static_cast<uint32_t>(q) * kPage);
    }
    const uint32_t tokens = kPage - static_cast<uint32_t>(__builtin_clz(mask));
    if (dim % kPage == 0) {
        add_values<kQueries, kPageVectors>(s, first, dim, tokens, v, factors);
    } else if constexpr (V::kAnyHead) {
        add_values<kQueries, 8 / V::kWidth>(s, first, dim, tokens, v, factors);
    }
}

// Queries [begin, end) take a page, in tiles of kQueries and then smaller ones.
template <int kQueries, class E>
inline void visit_page_all(const Queries& s,
                           uint32_t begin,
                           uint32_t end,
                           uint32_t dim,
                           uint32_t mask,
                           const E* k,
                           const E* v) {
    for (; begin + kQueries <= end; begin += kQueries)
        visit_page<kQueries>(s, begin, dim, mask, k, v);
    if constexpr (kQueries > 1) {
        if (begin < end) visit_page_all<kQueries - 1>(s, begin, end, dim, mask, k, v);
    }
}

// Rows [begin, end) of one sequence, ascending in position.
template <class E>
inline void attend_rows(
    const AttentionArgs& a, const Queries& s, uint32_t begin, uint32_t end, uint32_t kv_head) {
    const uint32_t dim = a.kv.head_dim;
    const uint32_t group = a.heads / a.kv.kv_heads;
    const uint32_t queries = (end - begin) * group;
    const auto row_at = [&](uint32_t query) {
        const uint64_t head = kv_head * group + query % group;
        return (uint64_t{begin + query / group} * a.heads + head) * dim;
    };
    for (uint32_t query = 0; query < queries; ++query) {
        const float* from = a.q + row_at(query);
        for (uint32_t d = 0; d < dim; ++d) {
            s.q[uint64_t{query} * dim + d] = from[d] * a.scale;
            s.acc[uint64_t{query} * dim + d] = 0.0f;
        }
        for (uint32_t t = 0; t < kPage; ++t) s.sum[query * kPage + t] = 0.0f;
        s.most[query] = -__builtin_inff();
    }
    // Whole for every row.
    const uint32_t shared_pages = a.masks == nullptr ? (a.kv.positions[begin] + 1) / kPage : 0;
    const uint32_t last_page = a.kv.positions[end - 1] / kPage;
    for (uint32_t page = 0; page <= last_page; ++page) {
        const uint64_t at = page_at(a.kv, begin, page, kv_head);
        const E* k = static_cast<const E*>(a.kv.k) + at;
        const E* v = static_cast<const E*>(a.kv.v) + at;
        if (page < shared_pages) {
            visit_page_all<V::kQueriesMax>(s, 0, queries, dim, kWholePage, k, v);
            continue;
        }
        for (uint32_t row = begin; row < end; ++row) {
            const uint32_t visible = a.kv.positions[row] + 1;
            if (visible <= page * kPage) continue;
            const uint32_t rest = visible - page * kPage;
            uint32_t mask = rest < kPage ? (1u << rest) - 1 : kWholePage;
            if (a.masks != nullptr) mask &= a.masks[uint64_t{row} * a.mask_words + page];
            if (mask == 0) continue;
            const uint32_t first = (row - begin) * group;
            visit_page_all<V::kQueriesMax>(s, first, first + group, dim, mask, k, v);
        }
    }
    for (uint32_t query = 0; query < queries; ++query) {
        V::T lanes = V::load(s.sum + query * kPage);
        for (int j = 1; j < kPageVectors; ++j)
            lanes = V::add(lanes, V::load(s.sum + query * kPage + j * V::kWidth));
        const float inverse = 1.0f / V::sum(lanes);
        float* to = a.out + row_at(query);
        for (uint32_t d = 0; d < dim; ++d) to[d] = s.acc[uint64_t{query} * dim + d] * inverse;
    }
}

template <class E>
inline void attend_item(const AttentionArgs& a, uint32_t item) {
    const uint32_t kv_head = item % a.kv.kv_heads;
    const uint32_t first = item / a.kv.kv_heads * a.block_rows;
    const uint32_t last = first + a.block_rows < a.rows ? first + a.block_rows : a.rows;
    const uint64_t queries = uint64_t{a.block_rows} * (a.heads / a.kv.kv_heads);
    Queries s;
    s.q = a.scratch;
    s.acc = s.q + queries * a.kv.head_dim;
    s.sum = s.acc + queries * a.kv.head_dim;
    s.weight = s.sum + queries * kPage;
    s.most = s.weight + kQueryTileMax * kPage;
    for (uint32_t begin = first; begin < last;) {
        uint32_t end = begin + 1;
        while (end < last && a.kv.sequences[end] == a.kv.sequences[begin]) ++end;
        attend_rows<E>(a, s, begin, end, kv_head);
        begin = end;
    }
}

void attention(const AttentionArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t item = begin; item < end; ++item) {
        if (a.kv.is_f32) {
            attend_item<float>(a, item);
        } else {
            attend_item<uint16_t>(a, item);
        }
    }
}

}  // namespace
}  // namespace strata::cpu
