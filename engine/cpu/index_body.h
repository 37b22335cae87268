// Index keys, compiled for the lanes included before: what rows choose by (see
// engine/plan/index_layout.h for how they are kept).
//
//   append   a row's raw key into its page
//   blocks   of a block that a row completes: mean of its raw keys in ascending order, RMS norm,
//            rotated at the block's first position; read from the cache, so that nothing depends on
//            which step brought a key
//   scores   sum over heads of max(0, q_h . block key), heads ascending; dots in one chain of
//            vectors. A row reads each complete block key before it once: position / block_tokens *
//            head_dim values, 2 * heads operations each.
#pragma once

#include "engine/cpu/rows_body.h"

namespace strata::cpu {
namespace {

// First element of the row's page of `count` keys a page.
inline uint64_t index_page(const IndexArgs& a, uint32_t row, uint32_t page, uint32_t count) {
    const uint64_t table = uint64_t{a.sequences[row]} * a.page_table_stride;
    return uint64_t{a.page_tables[table + page]} * count * a.head_dim;
}

template <class E>
inline void append_key(const IndexAppendArgs& a, uint32_t row) {
    const uint32_t position = a.index.positions[row];
    const uint64_t at = index_page(a.index, row, position / kPage, kPage) +
                        uint64_t{position % kPage} * a.index.head_dim;
    to_elements(a.x + uint64_t{row} * a.index.head_dim,
                static_cast<E*>(a.index.keys) + at,
                a.index.head_dim);
}

template <class E>
inline void complete_block(const IndexBlocksArgs& a, uint32_t row) {
    const uint32_t dim = a.index.head_dim;
    const uint32_t tokens = a.index.block_tokens;
    const uint32_t position = a.index.positions[row];
    if (position % tokens != tokens - 1) return;
    const uint32_t first = position + 1 - tokens;
    const uint32_t page = first / kPage;
    const E* const keys = static_cast<const E*>(a.index.keys) +
                          index_page(a.index, row, page, kPage) + uint64_t{first % kPage} * dim;
    float mean[kIndexDimMax];
    float key[kIndexDimMax];
    const V::T share = V::set1(1.0f / static_cast<float>(tokens));
    for (uint32_t i = 0; i < dim; i += V::kWidth) {
        V::T sum = V::zero();
        for (uint32_t t = 0; t < tokens; ++t)
            sum = V::add(sum, V::load(keys + uint64_t{t} * dim + i));
        V::store(mean + i, V::mul(sum, share));
    }
    norm_group(mean, a.gain, key, dim, a.eps);
    float cosines[kRopePairsMax];
    float sines[kRopePairsMax];
    rope_angles(first, a.frequencies, a.rope_dims / 2, cosines, sines);
    for (uint32_t i = 0; i < a.rope_dims / 2; ++i) {
        cosines[i] *= a.magnitude;
        sines[i] *= a.magnitude;
    }
    rotate_head(key, a.rope_dims / 2, a.is_neox, cosines, sines);
    const uint32_t blocks = kPage / tokens;
    E* const to = static_cast<E*>(a.index.blocks) + index_page(a.index, row, page, blocks) +
                  uint64_t{first % kPage / tokens} * dim;
    to_elements(key, to, dim);
}

// Adds to scores what kHeads heads give kBlocks neighbouring blocks. Tiles share loads; each dot is
// the same chain in any of them.
template <int kHeads, int kBlocks, class E>
inline void score_tile(const float* q, const E* blocks, uint32_t dim, float* scores) {
    V::T products[kBlocks][kHeads];
    for (int block = 0; block < kBlocks; ++block) {
        for (int head = 0; head < kHeads; ++head) products[block][head] = V::zero();
    }
    for (uint32_t i = 0; i < dim; i += V::kWidth) {
        V::T keys[kBlocks];
        for (int block = 0; block < kBlocks; ++block)
            keys[block] = V::load(blocks + static_cast<uint32_t>(block) * dim + i);
        for (int head = 0; head < kHeads; ++head) {
            const V::T query = V::load(q + static_cast<uint32_t>(head) * dim + i);
            for (int block = 0; block < kBlocks; ++block)
                products[block][head] = V::fma(query, keys[block], products[block][head]);
        }
    }
    for (int block = 0; block < kBlocks; ++block) {
        for (int head = 0; head < kHeads; ++head) {
            const float dot = V::sum(products[block][head]);
            scores[block] += dot > 0 ? dot : 0.0f;
        }
    }
}

template <int kBlocks, class E>
inline void score_heads(const IndexScoresArgs& a, const float* q, const E* blocks, float* scores) {
    const uint32_t dim = a.index.head_dim;
    for (int block = 0; block < kBlocks; ++block) scores[block] = 0;
    uint32_t head = 0;
    for (; head + 4 <= a.heads; head += 4)
        score_tile<4, kBlocks>(q + head * dim, blocks, dim, scores);
    for (; head < a.heads; ++head) score_tile<1, kBlocks>(q + head * dim, blocks, dim, scores);
}

template <class E>
inline void score_page(
    const IndexScoresArgs& a, const float* q, const E* blocks, uint32_t count, float* scores) {
    constexpr uint32_t kTile = V::kWidth == 16 ? 4 : 2;  // as registers hold
    uint32_t block = 0;
    for (; block + kTile <= count; block += kTile)
        score_heads<kTile>(a, q, blocks + uint64_t{block} * a.index.head_dim, scores + block);
    for (; block < count; ++block)
        score_heads<1>(a, q, blocks + uint64_t{block} * a.index.head_dim, scores + block);
}

template <class E>
inline void score_blocks(const IndexScoresArgs& a, uint32_t row) {
    const uint32_t in_page = kPage / a.index.block_tokens;
    const uint32_t complete = (a.index.positions[row] + 1) / a.index.block_tokens;
    const float* const q = a.q + uint64_t{row} * a.heads * a.index.head_dim;
    for (uint32_t first = 0; first < complete; first += in_page) {
        const uint32_t left = complete - first;
        const E* const blocks = static_cast<const E*>(a.index.blocks) +
                                index_page(a.index, row, first / in_page, in_page);
        score_page(a, q, blocks, left < in_page ? left : in_page, a.scores + first);
    }
}

void index_append(const IndexAppendArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        if (a.index.is_f32) {
            append_key<float>(a, row);
        } else {
            append_key<uint16_t>(a, row);
        }
    }
}

void index_blocks(const IndexBlocksArgs& a, uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
        if (a.index.is_f32) {
            complete_block<float>(a, row);
        } else {
            complete_block<uint16_t>(a, row);
        }
    }
}

void index_scores(const IndexScoresArgs& a, uint32_t row) {
    if (a.index.is_f32) {
        score_blocks<float>(a, row);
    } else {
        score_blocks<uint16_t>(a, row);
    }
}

}  // namespace
}  // namespace strata::cpu
