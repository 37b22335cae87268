// The fields of an OpRequest by name: the one list behind conditions of --without-kernel and the
// tests' view of a request.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/plan/op.h"

namespace strata {

struct OpCountField {
    std::string_view name;
    uint32_t OpRequest::* member;
};
inline constexpr OpCountField kOpCountFields[] = {
    {"rows", &OpRequest::rows},
    {"sequences", &OpRequest::sequences},
    {"n", &OpRequest::n},
    {"k", &OpRequest::k},
    {"heads", &OpRequest::heads},
    {"kv_heads", &OpRequest::kv_heads},
    {"head_dim", &OpRequest::head_dim},
    {"rope_dims", &OpRequest::rope_dims},
    {"page_tokens", &OpRequest::page_tokens},
    {"taps", &OpRequest::taps},
    {"dilation", &OpRequest::dilation},
    {"offset", &OpRequest::offset},
    {"block_tokens", &OpRequest::block_tokens},
    {"blocks_used", &OpRequest::blocks_used},
    {"mask_words", &OpRequest::mask_words},
    {"undo", &OpRequest::undo},
    {"experts", &OpRequest::experts},
    {"experts_used", &OpRequest::experts_used},
};

struct OpTypeField {
    std::string_view name;
    DType OpRequest::* member;
};
inline constexpr OpTypeField kOpTypeFields[] = {
    {"weight", &OpRequest::weight}, {"act", &OpRequest::act}, {"kv", &OpRequest::kv}};

}  // namespace strata
