#include "engine/model/delta_net.h"

namespace strata {

namespace {

struct Projections {
    ValueId qkv;  // all queries, all keys, all values
    ValueId z;    // [value heads * head_dim]
};

// Rows by key head give the value heads of a key head side by side, where these architectures have
// them tiled; no file of theirs was written so, and which order its other tensors have is not said.
void refuse_tiled(GraphBuilder& b, std::string_view tensor) {
    if (b.has_tiled_heads()) {
        b.refuse_layout(tensor,
                        "has its rows by key head, in which this architecture does not store them");
    }
}

Projections add_projections(GraphBuilder& b, const DeltaSizes& sizes, ValueId x) {
    if (!b.has("ssm_in")) {
        const ValueId qkv = b.matmul(x, "attn_qkv", sizes.channels());
        return {qkv, b.matmul(x, "attn_gate", sizes.values_width())};
    }
    refuse_tiled(b, "ssm_in");
    const uint32_t dim = sizes.head_dim;
    const uint32_t values = sizes.value_heads / sizes.key_heads * dim;  // of one key head
    const ValueId all = b.matmul(x, "ssm_in", sizes.channels() + sizes.values_width());
    const auto part = [&](uint32_t offset, uint32_t width) {
        return b.slice(all, sizes.key_heads, offset, width);
    };
    const ValueId q = part(0, dim);
    const ValueId k = part(dim, dim);
    const ValueId v = part(2 * dim, values);
    const ValueId z = part(2 * dim + values, values);
    return {b.concat(b.concat(q, k), v), z};
}

ValueId add_gates(GraphBuilder& b, const DeltaSizes& sizes, ValueId x) {
    if (!b.has("ssm_ba")) {
        const ValueId beta = b.matmul(x, "ssm_beta", sizes.value_heads);
        const ValueId alpha = b.matmul(x, "ssm_alpha", sizes.value_heads);
        return b.delta_gates(alpha, beta, "ssm_dt", "ssm_a");
    }
    refuse_tiled(b, "ssm_ba");
    const uint32_t ratio = sizes.value_heads / sizes.key_heads;
    const ValueId both = b.matmul(x, "ssm_ba", 2 * sizes.value_heads);
    const ValueId beta = b.slice(both, sizes.key_heads, 0, ratio);
    const ValueId alpha = b.slice(both, sizes.key_heads, ratio, ratio);
    return b.delta_gates(alpha, beta, "ssm_dt", "ssm_a");
}

}  // namespace

ValueId add_delta_net(
    GraphBuilder& b, const Hparams& hp, ValueId x, OutputGate gate, bool is_last) {
    const DeltaSizes& sizes = hp.delta;
    const Projections projections = add_projections(b, sizes, x);
    const ValueId gates = add_gates(b, sizes, x);
    const ValueId c = b.short_conv(projections.qkv, "ssm_conv1d", {sizes.taps});
    b.l2_norm(c, 2 * sizes.key_heads, sizes.head_dim);
    ValueId o = b.delta_rule(c, gates);
    ValueId z = projections.z;
    if (is_last) {
        o = b.gather(o);
        z = b.gather(z);
    }
    const ValueId normed = b.norm_groups(o, "ssm_norm", sizes.head_dim);
    const ValueId y = gate == OutputGate::Silu ? b.swiglu(z, normed) : b.sigmoid_gate(normed, z);
    return b.matmul(y, "ssm_out", hp.width);
}

ValueId add_gated_attention(
    GraphBuilder& b, const Hparams& hp, ValueId x, bool is_last, ValueId masks) {
    GraphBuilder::Qkv qkv = b.qkv(x, 2 * hp.heads * hp.head_dim);
    const ValueId both = qkv.q;
    ValueId gate = b.slice(both, hp.heads, hp.head_dim, hp.head_dim);
    qkv.q = b.norm_heads(b.slice(both, hp.heads, 0, hp.head_dim), "attn_q_norm");
    qkv.k = b.norm_heads(qkv.k, "attn_k_norm");
    b.rope(qkv.q);
    b.rope(qkv.k);
    ValueId attended = b.attention(qkv, masks);
    if (is_last) {
        attended = b.gather(attended);
        gate = b.gather(gate);
    }
    return b.matmul(b.sigmoid_gate(attended, gate), "attn_output", hp.width);
}

}  // namespace strata
