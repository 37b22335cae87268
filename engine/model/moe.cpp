#include "engine/model/moe.h"

namespace strata {

namespace {

struct GateUp {
    ValueId gate, up;
};

GateUp gate_and_up(GraphBuilder& b, uint32_t ff, ValueId x, ValueId routing) {
    if (!b.has("ffn_gate_up_exps")) {
        const ValueId gate = b.expert_matmul(x, routing, "ffn_gate_exps", ff);
        return {gate, b.expert_matmul(x, routing, "ffn_up_exps", ff)};
    }
    const auto half = [&](uint32_t begin) {
        return b.expert_matmul_part(x, routing, "ffn_gate_up_exps", {begin, ff, 2 * ff});
    };
    const ValueId gate = half(0);
    return {gate, half(ff)};
}

void add_shared_expert(GraphBuilder& b, const Hparams& hp, ValueId x, ValueId y) {
    const ValueId gate = b.matmul(x, "ffn_gate_shexp", hp.moe.shared_ff);
    const ValueId up = b.matmul(x, "ffn_up_shexp", hp.moe.shared_ff);
    const ValueId shared = b.matmul(b.swiglu(gate, up), "ffn_down_shexp", hp.width);
    b.gated_add(y, shared, b.matmul(x, "ffn_gate_inp_shexp", 1));
}

}  // namespace

ValueId moe(GraphBuilder& b, const Hparams& hp, ValueId x) {
    const ValueId routing = b.route(b.matmul(x, "ffn_gate_inp", hp.moe.experts));
    const GateUp inner = gate_and_up(b, hp.expert_ff_of(b.layer()), x, routing);
    const ValueId outputs =
        b.expert_matmul(b.swiglu(inner.gate, inner.up), routing, "ffn_down_exps", hp.width);
    const ValueId y = b.expert_sum(outputs, routing);
    if (hp.moe.shared_ff > 0) add_shared_expert(b, hp, x, y);
    return y;
}

}  // namespace strata
