// The builder's nodes of residual streams, of index keys and of tables addressed by n-grams.
#include "engine/base/assert.h"
#include "engine/model/graph_builder.h"
#include "engine/plan/index_layout.h"
#include "engine/plan/mode.h"

namespace strata {

// Files hold the gains as one vector or as [width, streams].
TensorSlice GraphBuilder::stream_gains(const std::string& name) {
    const uint64_t elements = hp_.hidden_width();
    const gguf::TensorInfo* const tensor = find(name);
    const bool is_by_stream = tensor != nullptr && tensor->shape[0] == hp_.width &&
                              tensor->shape[1] == hp_.streams.count &&
                              tensor->elements() == elements;
    return vector(name, elements, is_by_stream);
}

Node& GraphBuilder::add_stream_node(NodeKind kind, ValueId x, ValueId out) {
    Node& node = add_node(kind);
    node.x = x;
    node.out = out;
    node.heads = hp_.streams.count;
    return node;
}

ValueId GraphBuilder::spread_streams(ValueId x) {
    const Value value = graph_.values[x];
    const ValueId out = new_value(hp_.streams.count * value.width, value.gathered);
    add_stream_node(NodeKind::StreamSpread, x, out);
    return out;
}

ValueId GraphBuilder::norm_streams(ValueId x, std::string_view tensor) {
    return add_stream_norm(x, tensor, hp_.width);
}

ValueId GraphBuilder::add_stream_norm(ValueId x, std::string_view tensor, uint32_t group) {
    const Value value = graph_.values[x];
    STRATA_ASSERT(value.width == hp_.hidden_width(), "a norm of all streams");
    TensorSlice gains = stream_gains(full_name(tensor, ".weight"));
    gains.rows = value.width;
    const ValueId out = new_value(value.width, value.gathered);
    Node& node = add_stream_node(NodeKind::Norm, x, out);
    node.vector = gains;
    node.group = group;
    return out;
}

ValueId GraphBuilder::stream_silu(ValueId x) {
    const Value value = graph_.values[x];
    const ValueId out = new_value(value.width, value.gathered);
    add_stream_node(NodeKind::Silu, x, out);
    return out;
}

ValueId GraphBuilder::mix_streams(ValueId x, ValueId gates) {
    const Value value = graph_.values[x];
    STRATA_ASSERT(graph_.values[gates].width == value.width, "a gate for each value");
    const ValueId out = new_value(hp_.width, value.gathered);
    add_stream_node(NodeKind::StreamMix, x, out).y = gates;
    return out;
}

void GraphBuilder::add_streams(ValueId x, ValueId y, ValueId gates) {
    STRATA_ASSERT(graph_.values[x].width == hp_.hidden_width() &&
                      graph_.values[y].width == hp_.width &&
                      graph_.values[gates].width == hp_.streams.count &&
                      graph_.values[x].gathered == graph_.values[y].gathered &&
                      graph_.values[x].gathered == graph_.values[gates].gathered,
                  "operands of an addition to streams fit");
    Node& node = add_stream_node(NodeKind::StreamAdd, x, x);
    node.y = y;
    node.z = gates;
}

ValueId GraphBuilder::score_streams(ValueId x, ValueId y) {
    const Value value = graph_.values[x];
    STRATA_ASSERT(graph_.values[y].width == value.width, "streams of one width");
    const ValueId out = new_value(hp_.streams.count, value.gathered);
    add_stream_node(NodeKind::StreamScores, x, out).y = y;
    return out;
}

ValueId GraphBuilder::scale_streams(ValueId x, ValueId scores) {
    const Value value = graph_.values[x];
    const ValueId out = new_value(hp_.streams.count * value.width, value.gathered);
    add_stream_node(NodeKind::StreamScale, x, out).y = scores;
    return out;
}

void GraphBuilder::index_keys(ValueId keys, std::string_view norm_tensor) {
    const TensorSlice gain = vector(full_name(norm_tensor, ".weight"), hp_.index.head_dim);
    Node& node = add_node(NodeKind::IndexKeys);
    node.x = keys;
    node.vector = gain;
}

ValueId GraphBuilder::select_tokens(ValueId queries) {
    const ValueId out = new_value(mask_words(hp_.context, kPageTokens), false);
    Node& node = add_node(NodeKind::SelectTokens);
    node.x = queries;
    node.out = out;
    return out;
}

TensorSlice GraphBuilder::table(std::string_view tensor) {
    const std::string name = std::string(tensor) + ".weight";
    const std::string needed =
        "[" + std::to_string(hp_.table.width) + ", " + std::to_string(hp_.table.rows) + " and up]";
    TensorSlice slice = take(name, needed);
    if (!slice.is_present()) return {};
    const gguf::TensorInfo& info = files_.tensor(slice);
    const uint64_t rows = info.shape[1];
    const bool has_rows = rows >= hp_.table.rows && rows <= UINT32_MAX;
    check_matrix(info, {hp_.table.width, has_rows ? rows : hp_.table.rows, 1, 1}, needed);
    slice.rows = static_cast<uint32_t>(rows);
    return slice;
}

ValueId GraphBuilder::ngram_rows(std::string_view tensor) {
    const TensorSlice weight = table(tensor);
    const ValueId out = new_value(hp_.table.heads, false);
    Node& node = add_node(NodeKind::NgramRows);
    node.out = out;
    node.weight = weight;
    node.heads = hp_.table.heads;
    return out;
}

ValueId GraphBuilder::table_rows(ValueId rows, std::string_view tensor) {
    const TensorSlice weight = table(tensor);
    const ValueId out = new_value(hp_.table.heads * hp_.table.width, false);
    Node& node = add_node(NodeKind::TableRows);
    node.x = rows;
    node.out = out;
    node.weight = weight;
    node.heads = hp_.table.heads;
    return out;
}

void GraphBuilder::skip(std::string_view tensor) {
    const std::string name = full_name(tensor, ".weight");
    if (find(name) != nullptr) take(name, "");
}

ValueId GraphBuilder::draft_input_streams(std::string_view embedding_tensor) {
    const ValueId token = add_embed(own_or("nextn.embed_tokens", embedding_tensor));
    const ValueId hidden = new_value(hp_.hidden_width(), false);
    add_node(NodeKind::Input).out = hidden;
    // From here to eh_proj each stream is a row of its own.
    Value by_stream;
    by_stream.width = hp_.width;
    by_stream.per_row = hp_.streams.count;
    const ValueId first = new_value(by_stream);
    add_stream_node(NodeKind::StreamSpread, norm(token, "nextn.enorm"), first);
    const uint32_t normed = hp_.streams.has_whole_draft_norm ? hp_.hidden_width() : hp_.width;
    const ValueId second = add_stream_norm(hidden, "nextn.hnorm", normed);
    const auto project = [&](ValueId x, std::string_view tensor, uint64_t k) {
        TensorSlice weight = matrix(full_name(tensor, ".weight"), k, hp_.width);
        weight.rows = hp_.width;
        const ValueId out = new_value(hp_.hidden_width(), false);
        Node& matmul = add_node(NodeKind::Matmul);
        matmul.x = x;
        matmul.out = out;
        matmul.weight = weight;
        return out;
    };
    by_stream.width = 2 * hp_.width;
    const ValueId both = new_value(by_stream);
    Node& node = add_node(NodeKind::Concat);
    node.x = first;
    node.y = second;
    node.out = both;
    if (has("nextn.eh_proj") || !has("nextn.fc_embd")) {
        return project(both, "nextn.eh_proj", 2 * uint64_t{hp_.width});
    }
    // As draft_projection(). A norm of all streams has a row of them all; cut out of `both` each
    // stream's part is a row of its own.
    by_stream.width = hp_.width;
    const ValueId parts = new_value(by_stream);
    Node& cut = add_node(NodeKind::Slice);
    cut.x = both;
    cut.out = parts;
    cut.heads = 1;
    cut.offset = hp_.width;
    cut.group = hp_.width;
    const ValueId out = project(first, "nextn.fc_embd", hp_.width);
    add(out, project(parts, "nextn.fc_hidden", hp_.width));
    return out;
}

}  // namespace strata
