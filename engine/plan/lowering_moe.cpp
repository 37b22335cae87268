// Mixtures of experts in a step plan.
#include "engine/plan/lowering.h"

namespace strata {

PlannedOp& Lowering::add_expert_op(OpKind kind,
                                   const Node& node,
                                   ValueId rows_like,
                                   ValueId routing) {
    PlannedOp& op = add_op(kind, node, rows_like);
    op.request.experts = hp_.moe.experts;
    op.request.experts_used = hp_.moe.used;
    op.routing = routing;
    return op;
}

void Lowering::lower_route(const Node& node) {
    PlannedOp& route = add_expert_op(OpKind::Route, node, node.x, node.out);
    route.request.k = graph_.values[node.x].width;
    route.x = node.x;
    add_expert_op(OpKind::GroupExperts, node, node.x, node.out);
}

void Lowering::lower_expert_matmul(const Node& node) {
    const bool int8 = takes_int8(node);
    const uint32_t quant = int8 ? quant_of(node.x, node.layer) : kNoValue;
    PlannedOp& op = add_expert_op(OpKind::ExpertMatmul, node, node.out, node.routing);
    op.request.act = int8 ? DType::I8Block : DType::F32;
    op.request.n = node.weight.rows;
    op.request.k = graph_.values[node.x].width;
    is_by_expert_[node.out] = true;
    op.request.features = (is_by_expert_[node.x] ? uint32_t{kFeatureExpertOrder} : 0u) |
                          (node.vector.is_present() ? uint32_t{kFeatureExpertScale} : 0u);
    op.out = node.out;
    (int8 ? op.quant : op.x) = int8 ? quant : node.x;
}

void Lowering::lower_expert_sum(const Node& node) {
    PlannedOp& op = add_expert_op(OpKind::ExpertSum, node, node.out, node.routing);
    op.request.k = graph_.values[node.x].width;
    op.x = node.x;
    op.out = node.out;
}

void Lowering::lower_gated_add(const Node& node) {
    PlannedOp& op = add_op(OpKind::GatedAdd, node, node.x);
    op.request.k = graph_.values[node.x].width;
    op.x = node.y;
    op.y = node.z;
    op.out = node.x;
    quant_of_[node.x] = kNoValue;
}

}  // namespace strata
