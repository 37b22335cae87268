// Lowers the nodes of one graph to operations on values, in order; slots are assigned afterwards
// (slots.h). Part of step_plan.cpp, which alone makes step plans; one file for each family of
// nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/step_plan.h"

namespace strata {

// One graph and the size of its steps.
struct LoweringSource {
    const Hparams& hparams;
    const Graph& graph;
    TensorFiles files;
    uint32_t rows;
    uint32_t gather_rows;
    bool keeps_hidden;
    uint32_t undo;  // rows of a sequence that may be taken back after a step
};

// Operands of `ops` are values of the graph; `quant` fields are indices into `quant_values`.
class Lowering {
  public:
    Lowering(const LoweringSource& source, const ModePlan& plan, const ResolvesFn& resolves);

    void run();

    std::vector<PlannedOp> ops;
    std::vector<Value> quant_values;  // shape of each quantised value
    uint64_t state_floats = 0;

  private:
    void count_readers();
    bool takes_int8(const Node& node) const;
    PlannedOp& add_op(OpKind kind, const Node& node, ValueId rows_like);
    void lower(const Node& node);
    void lower_embed(const Node& node);
    void lower_norm(const Node& node);
    uint32_t new_quant(ValueId value);
    // The int8 form of a value, made where there is none.
    uint32_t quant_of(ValueId value, int32_t layer);
    void lower_matmul(const Node& node);
    // Of every operation that rotates.
    uint32_t rope_features() const;
    void lower_scale(const Node& node);
    void lower_rope(const Node& node);
    void lower_attention(const Node& node);
    void lower_elementwise(OpKind kind, const Node& node);

    // Of mixtures of experts (lowering_moe.cpp).
    PlannedOp& add_expert_op(OpKind kind, const Node& node, ValueId rows_like, ValueId routing);
    void lower_route(const Node& node);
    void lower_expert_matmul(const Node& node);
    void lower_expert_sum(const Node& node);
    void lower_gated_add(const Node& node);

    // Of recurrent layers and gated attention (lowering_recurrent.cpp).
    void lower_slice(const Node& node);
    void lower_short_conv(const Node& node);
    void lower_l2_norm(const Node& node);
    void lower_delta_gates(const Node& node);
    void lower_delta_rule(const Node& node);
    void add_state(PlannedOp& op);

    // Of residual streams and tables (lowering_streams.cpp).
    void lower_stream(OpKind kind, const Node& node);
    void lower_stream_add(const Node& node);
    void lower_index_keys(const Node& node);
    void lower_select_tokens(const Node& node);
    void fill_index(OpRequest& request) const;
    void lower_ngram_rows(const Node& node);
    PlannedOp& fill_table(PlannedOp& op, const Node& node) const;
    void lower_table_rows(const Node& node);

    const LoweringSource& source_;
    const Hparams& hp_;
    const Graph& graph_;
    const ModePlan& mode_;
    const ResolvesFn& resolves_;
    std::vector<uint32_t> quant_of_;  // per value: its int8 form as long as it is up to date
    std::vector<uint32_t> f32_readers_;
    std::vector<uint32_t> int8_readers_;
    std::vector<bool> is_by_expert_;  // per value: its rows are pairs in the order of experts
};

}  // namespace strata
