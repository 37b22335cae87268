// Residual streams and tables addressed by n-grams in a step plan.
#include "engine/plan/lowering.h"

namespace strata {

void Lowering::lower_stream(OpKind kind, const Node& node) {
    const Value& out = graph_.values[node.out];
    PlannedOp& op = add_op(kind, node, node.x);
    op.request.k = graph_.values[node.x].width;
    // Streams of one row may count as rows of what follows.
    op.request.n = out.width * out.per_row / op.per_row;
    op.request.heads = node.heads;
    op.x = node.x;
    op.y = node.y;
    op.out = node.out;
}

void Lowering::lower_stream_add(const Node& node) {
    PlannedOp& op = add_op(OpKind::StreamAdd, node, node.x);
    op.request.k = graph_.values[node.y].width;
    op.request.n = graph_.values[node.x].width;
    op.request.heads = node.heads;
    op.x = node.y;
    op.y = node.z;
    op.out = node.x;
    quant_of_[node.x] = kNoValue;
}

void Lowering::lower_ngram_rows(const Node& node) {
    PlannedOp& op = add_op(OpKind::NgramRows, node, node.out);
    op.request.k = node.weight.rows;
    op.request.n = op.request.heads = node.heads;
    op.request.head_dim = hp_.table.width;
    op.request.taps = hp_.table.tokens;
    op.request.undo = source_.undo;
    op.out = node.out;
    add_state(op);
}

void Lowering::lower_table_rows(const Node& node) {
    PlannedOp& op = add_op(OpKind::TableRows, node, node.x);
    op.request.k = node.weight.rows;
    op.request.n = graph_.values[node.out].width;
    op.request.heads = node.heads;
    op.request.head_dim = hp_.table.width;
    op.x = node.x;
    op.out = node.out;
}

}  // namespace strata
