// The builder's nodes of recurrent layers and of gated attention.
#include "engine/base/assert.h"
#include "engine/model/graph_builder.h"

namespace strata {

bool GraphBuilder::has(std::string_view tensor) const {
    return find(full_name(tensor, ".weight")) != nullptr;
}

void GraphBuilder::refuse_layout(std::string_view tensor, std::string_view why) {
    add_problem(ErrorKind::Unsupported,
                codes_.unexpected,
                "tensor " + full_name(tensor, ".weight") + " " + std::string(why));
}

void GraphBuilder::use_tiled_heads(bool tiled) {
    graph_.tiled_heads = tiled;
}

ValueId GraphBuilder::slice(ValueId x, uint32_t groups, uint32_t offset, uint32_t width) {
    const Value value = graph_.values[x];
    STRATA_ASSERT(value.width % groups == 0 && offset + width <= value.width / groups,
                  "a slice lies within its group");
    const ValueId out = new_value(groups * width, value.gathered);
    Node& node = add_node(NodeKind::Slice);
    node.x = x;
    node.out = out;
    node.heads = groups;
    node.offset = offset;
    node.group = width;
    return out;
}

ValueId GraphBuilder::sigmoid_gate(ValueId x, ValueId gate) {
    const Value value = graph_.values[x];
    STRATA_ASSERT(
        value.width == graph_.values[gate].width && value.gathered == graph_.values[gate].gathered,
        "operands of a gate differ in shape");
    const ValueId out = new_value(value.width, value.gathered);
    Node& node = add_node(NodeKind::SigmoidGate);
    node.x = x;
    node.y = gate;
    node.out = out;
    return out;
}

ValueId GraphBuilder::short_conv(ValueId x, std::string_view tensor, Taps taps) {
    const Value value = graph_.values[x];
    TensorSlice weight = matrix(full_name(tensor, ".weight"), taps.count, value.width);
    weight.rows = value.width;
    const ValueId out = new_value(value.width, value.gathered);
    Node& node = add_node(NodeKind::ShortConv);
    node.x = x;
    node.out = out;
    node.weight = weight;
    node.group = taps.count;
    node.offset = taps.apart;
    return out;
}

void GraphBuilder::l2_norm(ValueId x, uint32_t groups, uint32_t width) {
    Node& node = add_node(NodeKind::L2Norm);
    node.x = x;
    node.out = x;
    node.heads = groups;
    node.group = width;
}

ValueId GraphBuilder::delta_gates(ValueId alpha,
                                  ValueId beta,
                                  std::string_view bias,
                                  std::string_view rate) {
    const uint32_t heads = graph_.values[alpha].width;
    const TensorSlice biases = vector(full_name(bias, ".bias"), heads);
    const TensorSlice rates = vector(full_name(rate, ""), heads);
    const ValueId out = new_value(2 * heads, false);
    Node& node = add_node(NodeKind::DeltaGates);
    node.x = alpha;
    node.y = beta;
    node.out = out;
    node.vector = biases;
    node.vector2 = rates;
    return out;
}

ValueId GraphBuilder::delta_rule(ValueId qkv, ValueId gates) {
    const ValueId out = new_value(hp_.delta.values_width(), false);
    Node& node = add_node(NodeKind::DeltaRule);
    node.x = qkv;
    node.y = gates;
    node.out = out;
    return out;
}

}  // namespace strata
