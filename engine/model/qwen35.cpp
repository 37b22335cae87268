// Architecture `qwen35` (dense): three gated DeltaNet layers, then one of gated attention, each
// followed by a SwiGlu feed-forward part; value heads tiled over key heads. For text its rope over
// sections is that of the halves of a head (NEOX).
// Sources: the published Qwen3.5 models' code in transformers, and the GGUF tensors of llama.cpp.
#include "engine/model/architecture.h"
#include "engine/model/delta_hparams.h"
#include "engine/model/delta_net.h"

namespace strata {

namespace {

ValueId add_layer(GraphBuilder& b, const Hparams& hp, ValueId x, uint32_t layer, bool is_last) {
    const ValueId h = b.norm(x, "attn_norm");
    const ValueId mixed = hp.is_recurrent_layer(layer)
                              ? add_delta_net(b, hp, h, OutputGate::Silu, is_last)
                              : add_gated_attention(b, hp, h, is_last);
    if (is_last) x = b.gather(x);
    b.add(x, mixed);
    b.add(x, b.feed_forward(b.norm(x, "post_attention_norm")));
    return x;
}

Graph build(GraphBuilder& b, const Hparams& hp) {
    b.use_rope(/*neox=*/true, "");
    b.use_tiled_heads(true);
    ValueId x = b.embed("token_embd");
    for (uint32_t layer = 0; layer < hp.layers; ++layer) {
        b.begin_layer(layer);
        x = add_layer(b, hp, x, layer, layer + 1 == hp.layers);
    }
    b.end_layers();
    return b.finish(b.head(b.norm(x, "output_norm"), "token_embd"));
}

Graph build_draft(GraphBuilder& b, const Hparams& hp) {
    b.use_rope(/*neox=*/true, "");
    b.begin_layer(hp.layers);
    const ValueId x = add_layer(b, hp, b.draft_input("token_embd"), hp.layers, /*is_last=*/true);
    return b.finish(b.draft_head(x, "output_norm", "token_embd"));
}

}  // namespace

Architecture qwen35_architecture() {
    return {"qwen35", read_delta_hparams, build, build_draft};
}

}  // namespace strata
