#include "engine/plan/lowering.h"

namespace strata {

namespace {

bool is_float_weight(DType type) {
    return type == DType::F32 || type == DType::F16 || type == DType::BF16;
}

}  // namespace

Lowering::Lowering(const LoweringSource& source, const ModePlan& plan, const ResolvesFn& resolves)
    : source_(source),
      hp_(source.hparams),
      graph_(source.graph),
      mode_(plan),
      resolves_(resolves),
      quant_of_(graph_.values.size(), kNoValue),
      f32_readers_(graph_.values.size(), 0),
      int8_readers_(graph_.values.size(), 0),
      is_by_expert_(graph_.values.size(), false) {
    count_readers();
}

void Lowering::run() {
    for (const Node& node : graph_.nodes) {
        lower(node);
    }
}

void Lowering::count_readers() {
    for (const Node& node : graph_.nodes) {
        for (const ValueId id : {node.x, node.y, node.z}) {
            if (id != kNoValue) {
                ++(takes_int8(node) ? int8_readers_ : f32_readers_)[id];
            }
        }
    }
    if (source_.keeps_hidden) {
        ++f32_readers_[graph_.hidden];
    }
}

bool Lowering::takes_int8(const Node& node) const {
    const bool is_matmul = node.kind == NodeKind::Matmul || node.kind == NodeKind::ExpertMatmul;
    return is_matmul && mode_.activations == DType::I8Block &&
           !is_float_weight(source_.files.tensor(node.weight).type);
}

PlannedOp& Lowering::add_op(OpKind kind, const Node& node, ValueId rows_like) {
    PlannedOp& op = ops.emplace_back();
    op.gathered = graph_.values[rows_like].gathered;
    op.per_row = graph_.values[rows_like].per_row;
    op.request.kind = kind;
    op.request.rows = (op.gathered ? source_.gather_rows : source_.rows) * op.per_row;
    op.request.sequences = mode_.batch;
    op.request.layer = node.layer;
    op.weight = node.weight;
    op.vector = node.vector;
    op.vector2 = node.vector2;
    if (node.weight.is_present()) {
        const gguf::TensorInfo& tensor = source_.files.tensor(node.weight);
        op.request.weight = tensor.type;
        op.request.tensor = tensor.name;
    } else if (node.vector.is_present()) {
        op.request.tensor = source_.files.tensor(node.vector).name;
    }
    return op;
}

void Lowering::lower(const Node& node) {
    switch (node.kind) {
        case NodeKind::Input:
            return;
        case NodeKind::Embed:
            return lower_embed(node);
        case NodeKind::Norm:
            return lower_norm(node);
        case NodeKind::Matmul:
            return lower_matmul(node);
        case NodeKind::Rope:
            return lower_rope(node);
        case NodeKind::Attention:
            return lower_attention(node);
        case NodeKind::SwiGlu:
            return lower_elementwise(OpKind::SwiGlu, node);
        case NodeKind::Add:
            return lower_elementwise(OpKind::Add, node);
        case NodeKind::Concat:
            return lower_elementwise(OpKind::Concat, node);
        case NodeKind::Gather:
            return lower_elementwise(OpKind::GatherRows, node);
        case NodeKind::Slice:
            return lower_slice(node);
        case NodeKind::SigmoidGate:
            return lower_elementwise(OpKind::SigmoidGate, node);
        case NodeKind::ShortConv:
            return lower_short_conv(node);
        case NodeKind::L2Norm:
            return lower_l2_norm(node);
        case NodeKind::DeltaGates:
            return lower_delta_gates(node);
        case NodeKind::DeltaRule:
            return lower_delta_rule(node);
        case NodeKind::Route:
            return lower_route(node);
        case NodeKind::ExpertMatmul:
            return lower_expert_matmul(node);
        case NodeKind::ExpertSum:
            return lower_expert_sum(node);
        case NodeKind::GatedAdd:
            return lower_gated_add(node);
        case NodeKind::Scale:
            return lower_scale(node);
        case NodeKind::StreamSpread:
            return lower_stream(OpKind::StreamSpread, node);
        case NodeKind::Silu:
            return lower_stream(OpKind::Silu, node);
        case NodeKind::StreamMix:
            return lower_stream(OpKind::StreamMix, node);
        case NodeKind::StreamAdd:
            return lower_stream_add(node);
        case NodeKind::StreamScores:
            return lower_stream(OpKind::StreamScores, node);
        case NodeKind::StreamScale:
            return lower_stream(OpKind::StreamScale, node);
        case NodeKind::IndexKeys:
            return lower_index_keys(node);
        case NodeKind::SelectTokens:
            return lower_select_tokens(node);
        case NodeKind::NgramRows:
            return lower_ngram_rows(node);
        case NodeKind::TableRows:
            return lower_table_rows(node);
    }
}

void Lowering::lower_embed(const Node& node) {
    PlannedOp& op = add_op(OpKind::Embed, node, node.out);
    op.request.n = graph_.values[node.out].width;
    op.request.k = hp_.vocab;
    op.out = node.out;
}

void Lowering::lower_norm(const Node& node) {
    const uint32_t width = graph_.values[node.x].width;
    OpRequest shape;
    shape.k = width;
    if (node.group != width) {
        shape.head_dim = node.group;
        shape.heads = width / node.group;
        const bool has_own_gains = node.vector.rows == width;
        shape.features = kFeatureGrouped | (has_own_gains ? uint32_t{kFeatureGroupGain} : 0u);
    }
    const auto fill = [&](OpKind kind) -> PlannedOp& {
        PlannedOp& op = add_op(kind, node, node.x);
        op.request.k = shape.k;
        op.request.heads = shape.heads;
        op.request.head_dim = shape.head_dim;
        op.request.features = shape.features;
        op.x = node.x;
        return op;
    };
    if (int8_readers_[node.out] > 0 && f32_readers_[node.out] == 0) {
        PlannedOp& fused = fill(OpKind::RmsNormQuantize);
        if (resolves_(fused.request)) {
            fused.quant = new_quant(node.out);
            return;
        }
        ops.pop_back();
    }
    fill(OpKind::RmsNorm).out = node.out;
}

uint32_t Lowering::new_quant(ValueId value) {
    quant_values.push_back(graph_.values[value]);
    quant_of_[value] = static_cast<uint32_t>(quant_values.size() - 1);
    return quant_of_[value];
}

uint32_t Lowering::quant_of(ValueId value, int32_t layer) {
    if (quant_of_[value] == kNoValue) {
        Node rounding;  // carries the layer only: rounding has no weight
        rounding.layer = layer;
        PlannedOp& op = add_op(OpKind::Quantize, rounding, value);
        op.request.k = graph_.values[value].width;
        op.x = value;
        op.quant = new_quant(value);
    }
    return quant_of_[value];
}

void Lowering::lower_matmul(const Node& node) {
    const bool int8 = takes_int8(node);
    const uint32_t quant = int8 ? quant_of(node.x, node.layer) : kNoValue;
    PlannedOp& op = add_op(OpKind::Matmul, node, node.x);
    op.request.act = int8 ? DType::I8Block : DType::F32;
    op.request.n = node.weight.rows;
    op.request.k = graph_.values[node.x].width;
    op.request.features = node.vector.is_present() ? uint32_t{kFeatureBias} : 0u;
    op.out = node.out;
    (int8 ? op.quant : op.x) = int8 ? quant : node.x;
}

uint32_t Lowering::rope_features() const {
    return (graph_.rope_neox ? uint32_t{kFeatureRopeNeox} : 0u) |
           (graph_.rope_factors.is_present() ? uint32_t{kFeatureRopeFactors} : 0u) |
           (hp_.rope_scaling.magnitude != 1 ? uint32_t{kFeatureRopeMagnitude} : 0u);
}

void Lowering::lower_scale(const Node& node) {
    PlannedOp& op = add_op(OpKind::Scale, node, node.x);
    op.request.k = graph_.values[node.x].width;
    op.out = node.x;
    quant_of_[node.x] = kNoValue;
}

void Lowering::lower_rope(const Node& node) {
    PlannedOp& op = add_op(OpKind::Rope, node, node.x);
    op.request.k = graph_.values[node.x].width;
    op.request.heads = node.heads;
    op.request.head_dim = node.group;
    op.request.rope_dims = hp_.rope_dims;
    op.request.features = rope_features();
    op.out = node.x;
    quant_of_[node.x] = kNoValue;
}

void Lowering::lower_attention(const Node& node) {
    const auto fill = [&](PlannedOp& op, ValueId rows) {
        op.request.kv = mode_.kv;
        op.request.k = graph_.values[rows].width;
        op.request.kv_heads = hp_.kv_heads;
        op.request.head_dim = hp_.head_dim;
        op.request.page_tokens = kPageTokens;
    };
    PlannedOp& append = add_op(OpKind::KvAppend, node, node.y);
    fill(append, node.y);
    append.x = node.y;
    append.y = node.z;
    PlannedOp& attend = add_op(OpKind::Attention, node, node.x);
    fill(attend, node.x);
    attend.request.heads = hp_.heads;
    attend.request.n = attend.request.k;
    if (node.routing != kNoValue) {
        attend.request.features = kFeatureSelected;
        attend.request.mask_words = graph_.values[node.routing].width;
        attend.routing = node.routing;
    }
    attend.x = node.x;
    attend.out = node.out;
}

void Lowering::lower_elementwise(OpKind kind, const Node& node) {
    PlannedOp& op = add_op(kind, node, node.out);
    op.request.k = graph_.values[node.x].width;
    op.out = node.out;
    is_by_expert_[node.out] = is_by_expert_[node.x];
    if (kind == OpKind::Add) {  // changed in place: the first operand is the output
        op.y = node.y;
        quant_of_[node.x] = kNoValue;
    } else {
        op.x = node.x;
        op.y = node.y;
    }
    if (kind == OpKind::Concat) {
        op.request.n = graph_.values[node.out].width;
    }
}

}  // namespace strata
