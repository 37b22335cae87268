// Residual streams, index keys and tables addressed by n-grams in a step plan.
#include "engine/plan/index_layout.h"
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

void Lowering::fill_index(OpRequest& request) const {
    request.kv = index_type(mode_.kv);
    request.head_dim = hp_.index.head_dim;
    request.page_tokens = kPageTokens;
    request.block_tokens = hp_.index.block_tokens;
}

void Lowering::lower_index_keys(const Node& node) {
    PlannedOp& append = add_op(OpKind::IndexAppend, node, node.x);
    fill_index(append.request);
    append.request.k = graph_.values[node.x].width;
    append.vector = {};
    append.request.tensor.clear();
    append.x = node.x;
    PlannedOp& blocks = add_op(OpKind::IndexBlocks, node, node.x);
    fill_index(blocks.request);
    blocks.request.k = graph_.values[node.x].width;
    blocks.request.rope_dims = hp_.rope_dims;
    blocks.request.features = rope_features();
}

void Lowering::lower_select_tokens(const Node& node) {
    PlannedOp& op = add_op(OpKind::SelectTokens, node, node.x);
    fill_index(op.request);
    op.request.k = graph_.values[node.x].width;
    op.request.heads = hp_.index.heads;
    op.request.blocks_used = hp_.index.blocks_used;
    op.request.mask_words = graph_.values[node.out].width;
    op.x = node.x;
    op.routing = node.out;
}

void Lowering::lower_ngram_rows(const Node& node) {
    PlannedOp& find = add_op(OpKind::NgramRows, node, node.out);
    find.weight = {};
    find.request.weight = DType::None;
    find.request.tensor.clear();
    find.request.n = find.request.heads = node.heads;
    find.request.taps = hp_.table.tokens;
    find.request.undo = source_.undo;
    find.out = node.out;
    add_state(find);
    fill_table(add_op(OpKind::FetchRows, node, node.out), node).x = node.out;
}

PlannedOp& Lowering::fill_table(PlannedOp& op, const Node& node) const {
    op.request.k = node.weight.rows;
    op.request.n = node.heads * hp_.table.width;
    op.request.heads = node.heads;
    op.request.head_dim = hp_.table.width;
    return op;
}

void Lowering::lower_table_rows(const Node& node) {
    PlannedOp& op = fill_table(add_op(OpKind::TableRows, node, node.x), node);
    op.x = node.x;
    op.out = node.out;
}

}  // namespace strata
