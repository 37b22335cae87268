// Recurrent layers and gated attention in a step plan.
#include "engine/plan/lowering.h"
#include "engine/plan/state_layout.h"

namespace strata {

void Lowering::lower_slice(const Node& node) {
    PlannedOp& op = add_op(OpKind::Slice, node, node.x);
    op.request.k = graph_.values[node.x].width;
    op.request.n = graph_.values[node.out].width;
    op.request.heads = node.heads;
    op.request.offset = node.offset;
    op.x = node.x;
    op.out = node.out;
}

void Lowering::lower_short_conv(const Node& node) {
    PlannedOp& op = add_op(OpKind::ShortConv, node, node.x);
    op.request.k = op.request.n = graph_.values[node.x].width;
    op.request.taps = node.group;
    if (node.offset > 1) {
        op.request.dilation = node.offset;
        op.request.features = kFeatureDilated;
    }
    op.request.undo = source_.undo;
    op.x = node.x;
    op.out = node.out;
    add_state(op);
}

void Lowering::lower_l2_norm(const Node& node) {
    PlannedOp& op = add_op(OpKind::L2Norm, node, node.x);
    op.request.k = graph_.values[node.x].width;
    op.request.heads = node.heads;
    op.request.head_dim = node.group;
    op.out = node.x;
    quant_of_[node.x] = kNoValue;
}

void Lowering::lower_delta_gates(const Node& node) {
    PlannedOp& op = add_op(OpKind::DeltaGates, node, node.x);
    op.request.k = op.request.heads = graph_.values[node.x].width;
    op.request.n = graph_.values[node.out].width;
    op.x = node.x;
    op.y = node.y;
    op.out = node.out;
}

void Lowering::lower_delta_rule(const Node& node) {
    PlannedOp& op = add_op(OpKind::DeltaRule, node, node.x);
    op.request.k = graph_.values[node.x].width;
    op.request.n = graph_.values[node.out].width;
    op.request.heads = hp_.delta.value_heads;
    op.request.kv_heads = hp_.delta.key_heads;
    op.request.head_dim = hp_.delta.head_dim;
    op.request.undo = source_.undo;
    op.request.features = graph_.tiled_heads ? uint32_t{kFeatureTiledHeads} : 0u;
    op.x = node.x;
    op.y = node.y;
    op.out = node.out;
    add_state(op);
}

void Lowering::add_state(PlannedOp& op) {
    op.state_at = state_floats;
    state_floats += op_state_floats(op.request);
}

}  // namespace strata
