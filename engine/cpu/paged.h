// What KvAppend and Attention share: the pages' geometry from a call, and its limits.
#pragma once

#include "engine/cpu/entries.h"
#include "engine/plan/type_words.h"

namespace strata::cpu {

// KV types f16 and f32, pages of 32 tokens, head_dim a multiple of `step` from 8 to 256.
inline Refused match_pages(const OpRequest& request, uint32_t step) {
    if (request.kv != DType::F16 && request.kv != DType::F32)
        return one_of("kv", kv_word(request.kv), "f16, f32");
    if (request.page_tokens != kPage)
        return one_of("page_tokens", std::to_string(request.page_tokens), std::to_string(kPage));
    if (request.head_dim < 8 || request.head_dim > kHeadDimMax)
        return one_of("head_dim", std::to_string(request.head_dim), "8 to 256");
    if (request.kv_heads == 0) return one_of("kv_heads", "0", "1 and up");
    return not_multiple("head_dim", request.head_dim, step);
}

inline KvArgs kv_args(const OpCall& call) {
    KvArgs args{};
    args.k = call.kv.k;
    args.v = call.kv.v;
    args.is_f32 = call.request->kv == DType::F32;
    args.kv_heads = call.request->kv_heads;
    args.head_dim = call.request->head_dim;
    args.positions = call.row.positions;
    args.sequences = call.row.sequences;
    args.page_tables = call.row.page_tables;
    args.page_table_stride = call.row.page_table_stride;
    return args;
}

}  // namespace strata::cpu
