#include "engine/plan/op.h"

#include <array>

#include "engine/base/assert.h"
#include "engine/plan/type_words.h"

namespace strata {
namespace {

constexpr std::array<std::string_view, kOpKindCount> kNames = {
    "embed",         "rms_norm",      "rms_norm_quantize",
    "quantize",      "matmul",        "rope",
    "kv_append",     "attention",     "swiglu",
    "add",           "concat",        "gather_rows",
    "slice",         "sigmoid_gate",  "short_conv",
    "l2_norm",       "delta_gates",   "delta_rule",
    "route",         "group_experts", "expert_matmul",
    "expert_sum",    "gated_add",     "stream_spread",
    "silu",          "stream_mix",    "stream_add",
    "stream_scores", "stream_scale",  "index_append",
    "index_blocks",  "select_tokens", "ngram_rows",
    "fetch_rows",    "table_rows",    "scale",
};

void append_count(std::string& line, std::string_view name, uint32_t value) {
    if (value == 0) return;
    line.append(" ").append(name).append("=").append(std::to_string(value));
}

void append_type(std::string& line, std::string_view name, DType type, std::string_view word) {
    if (type == DType::None) return;
    line.append(" ").append(name).append("=").append(word);
}

}  // namespace

std::string_view op_name(OpKind kind) {
    const auto index = static_cast<size_t>(kind);
    STRATA_ASSERT(index < kNames.size(), "every kind has a name");
    return kNames[index];
}

std::string_view feature_name(uint32_t bit) {
    switch (bit) {
        case kFeatureRopeNeox:
            return "rope_neox";
        case kFeatureRopeFactors:
            return "rope_factors";
        case kFeatureRopeMagnitude:
            return "rope_magnitude";
        case kFeatureBias:
            return "bias";
        case kFeatureGrouped:
            return "grouped";
        case kFeatureTiledHeads:
            return "tiled_heads";
        case kFeatureExpertOrder:
            return "expert_order";
        case kFeatureExpertScale:
            return "expert_scale";
        case kFeatureGroupGain:
            return "group_gain";
        case kFeatureDilated:
            return "dilated";
        case kFeatureSelected:
            return "selected";
        default:
            return "unnamed feature";
    }
}

bool reads_on_demand(OpKind kind) {
    return kind == OpKind::FetchRows || kind == OpKind::TableRows;
}

std::string describe(const OpRequest& request) {
    std::string line(op_name(request.kind));
    append_type(line, "weight", request.weight, dtype_name(request.weight));
    append_type(line, "act", request.act, dtype_name(request.act));
    append_type(line, "kv", request.kv, kv_word(request.kv));
    append_count(line, "n", request.n);
    append_count(line, "k", request.k);
    append_count(line, "rows", request.rows);
    append_count(line, "sequences", request.sequences > 1 ? request.sequences : 0);
    append_count(line, "heads", request.heads);
    append_count(line, "kv_heads", request.kv_heads);
    append_count(line, "head_dim", request.head_dim);
    append_count(line, "rope_dims", request.rope_dims);
    append_count(line, "page_tokens", request.page_tokens);
    append_count(line, "taps", request.taps);
    append_count(line, "dilation", request.dilation);
    append_count(line, "offset", request.offset);
    append_count(line, "block_tokens", request.block_tokens);
    append_count(line, "blocks_used", request.blocks_used);
    append_count(line, "mask_words", request.mask_words);
    append_count(line, "undo", request.undo);
    append_count(line, "experts", request.experts);
    append_count(line, "experts_used", request.experts_used);
    for (uint32_t bits = request.features; bits != 0; bits &= bits - 1)
        line.append(" +").append(feature_name(bits & ~(bits - 1)));
    if (!request.tensor.empty()) line.append(" (").append(request.tensor).append(")");
    return line;
}

}  // namespace strata
