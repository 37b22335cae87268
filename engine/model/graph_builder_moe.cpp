// The builder's nodes of mixtures of experts.
#include "engine/base/assert.h"
#include "engine/model/graph_builder.h"
#include "engine/plan/routing.h"

namespace strata {

TensorSlice GraphBuilder::experts(const std::string& name, uint64_t k, uint64_t n) {
    const uint64_t count = hp_.moe.experts;
    const std::string needed = shape_text(3, {k, n, count, 1});
    TensorSlice slice = take(name, needed);
    if (!slice.is_present()) {
        return {};
    }
    check_matrix(files_.tensor(slice), {k, n, count, 1}, needed);
    slice.rows = static_cast<uint32_t>(n);
    slice.experts = static_cast<uint32_t>(count);
    return slice;
}

ValueId GraphBuilder::route(ValueId logits) {
    const Value value = graph_.values[logits];
    Value routing;
    routing.width = routing_row_words(hp_.moe.used);
    routing.fixed = routing_fixed_words(hp_.moe.experts);
    routing.gathered = value.gathered;
    const ValueId out = new_value(routing);
    Node& node = add_node(NodeKind::Route);
    node.x = logits;
    node.out = out;
    return out;
}

ValueId GraphBuilder::expert_matmul(ValueId x,
                                    ValueId routing,
                                    std::string_view tensor,
                                    uint32_t n) {
    return expert_matmul_part(x, routing, tensor, {0, n, n});
}

ValueId GraphBuilder::expert_matmul_part(ValueId x,
                                         ValueId routing,
                                         std::string_view tensor,
                                         MatrixRows rows) {
    TensorSlice weight = experts(full_name(tensor, ".weight"), graph_.values[x].width, rows.of);
    weight.row_begin = rows.begin;
    weight.rows = rows.count;
    const TensorSlice scales = optional_vector(full_name(tensor, ".scale"), hp_.moe.experts);
    Value outputs;
    outputs.width = rows.count;
    outputs.gathered = graph_.values[x].gathered;
    outputs.per_row = hp_.moe.used;
    const ValueId out = new_value(outputs);
    Node& node = add_node(NodeKind::ExpertMatmul);
    node.x = x;
    node.out = out;
    node.routing = routing;
    node.weight = weight;
    node.vector = scales;
    return out;
}

ValueId GraphBuilder::expert_sum(ValueId x, ValueId routing) {
    const Value value = graph_.values[x];
    STRATA_ASSERT(value.per_row == hp_.moe.used, "a sum takes outputs of experts");
    const ValueId out = new_value(value.width, value.gathered);
    Node& node = add_node(NodeKind::ExpertSum);
    node.x = x;
    node.out = out;
    node.routing = routing;
    return out;
}

void GraphBuilder::gated_add(ValueId x, ValueId y, ValueId gate) {
    STRATA_ASSERT(graph_.values[x].width == graph_.values[y].width &&
                      graph_.values[x].gathered == graph_.values[y].gathered &&
                      graph_.values[gate].width == 1,
                  "operands of a gated addition differ in shape");
    Node& node = add_node(NodeKind::GatedAdd);
    node.x = x;
    node.y = y;
    node.z = gate;
    node.out = x;
}

}  // namespace strata
