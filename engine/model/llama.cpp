// Architecture `llama`: pre-norm attention and SwiGLU feed-forward, rope over adjacent pairs.
// Source of the formulas: the published Llama models and the GGUF tensor naming of llama.cpp.
#include "engine/model/architecture.h"

namespace strata {

namespace {

// One layer; behind the last cache, only rows with logits matter.
ValueId add_layer(GraphBuilder& b, const Hparams& hp, ValueId x, bool is_last) {
    const GraphBuilder::Qkv qkv = b.qkv(b.norm(x, "attn_norm"));
    b.rope(qkv.q);
    b.rope(qkv.k);
    ValueId attended = b.attention(qkv);
    if (is_last) {
        attended = b.gather(attended);
        x = b.gather(x);
    }
    b.add(x, b.matmul(attended, "attn_output", hp.width));
    b.add(x, b.feed_forward(b.norm(x, "ffn_norm")));
    return x;
}

Graph build(GraphBuilder& b, const Hparams& hp) {
    b.use_rope(/*neox=*/false, "rope_freqs");
    ValueId x = b.embed("token_embd");
    for (uint32_t layer = 0; layer < hp.layers; ++layer) {
        b.begin_layer(layer);
        x = add_layer(b, hp, x, layer + 1 == hp.layers);
    }
    b.end_layers();
    return b.finish(b.head(b.norm(x, "output_norm"), "token_embd"));
}

Graph build_draft(GraphBuilder& b, const Hparams& hp) {
    b.use_rope(/*neox=*/false, "rope_freqs");
    b.begin_layer(hp.layers);
    const ValueId x = add_layer(b, hp, b.draft_input("token_embd"), /*is_last=*/true);
    return b.finish(b.draft_head(x, "output_norm", "token_embd"));
}

}  // namespace

Architecture llama_architecture() {
    return {"llama", read_dense_hparams, build, build_draft};
}

}  // namespace strata
