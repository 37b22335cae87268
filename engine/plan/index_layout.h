// Index keys of layers whose queries choose what they attend to: how they are kept and what is
// chosen. Layout that the plan of memory, the lowering and the kernels share.
//
// Each page of keys and values has beside it, of each indexed layer, the raw index key of each of
// its tokens, [pages, page_tokens, head_dim], and one block key for each `block_tokens` tokens,
// [pages, page_tokens / block_tokens, head_dim]. A block key is written when the last token of its
// block is, and again when that position is: rows taken back need nothing else.
//
// What a row attends to is one word of a bit for each token for each page, [rows, mask_words].
#pragma once

#include <cstdint>

#include "engine/quant/dtype.h"

namespace strata {

// Index keys have no blocks of their own: f32 beside f32, else f16.
inline DType index_type(DType kv) {
    return kv == DType::F32 ? DType::F32 : DType::F16;
}

// Words of a row of a mask for `context` tokens.
inline uint32_t mask_words(uint32_t context, uint32_t page_tokens) {
    return (context + page_tokens - 1) / page_tokens;
}

// Elements of the raw keys, or of the block keys, of one layer of a pool of `tokens`.
inline uint64_t index_key_elements(uint64_t tokens, uint32_t head_dim) {
    return tokens * head_dim;
}
inline uint64_t index_block_elements(uint64_t tokens, uint32_t head_dim, uint32_t block_tokens) {
    return tokens / block_tokens * head_dim;
}

}  // namespace strata
