// Architecture `llama`: pre-norm attention and SwiGLU feed-forward, rope over adjacent pairs.
// Source of the formulas: the published Llama models and the GGUF tensor naming of llama.cpp.
#include "engine/model/architecture.h"

namespace strata {

namespace {

Graph build(GraphBuilder& b, const Hparams& hp) {
    b.use_rope(/*neox=*/false, "rope_freqs");
    ValueId x = b.embed("token_embd");
    for (uint32_t layer = 0; layer < hp.layers; ++layer) {
        b.begin_layer(layer);
        const GraphBuilder::Qkv qkv = b.qkv(b.norm(x, "attn_norm"));
        b.rope(qkv.q);
        b.rope(qkv.k);
        ValueId attended = b.attention(qkv);
        if (layer + 1 == hp.layers) {  // behind the last cache, only rows with logits matter
            attended = b.gather(attended);
            x = b.gather(x);
        }
        b.add(x, b.matmul(attended, "attn_output", hp.width));

        const ValueId h = b.norm(x, "ffn_norm");
        const ValueId gate = b.matmul(h, "ffn_gate", hp.ff);
        const ValueId up = b.matmul(h, "ffn_up", hp.ff);
        b.add(x, b.matmul(b.swiglu(gate, up), "ffn_down", hp.width));
    }
    b.end_layers();
    return b.finish(b.head(b.norm(x, "output_norm"), "token_embd"));
}

}  // namespace

Architecture llama_architecture() {
    return {"llama", read_dense_hparams, build};
}

}  // namespace strata
