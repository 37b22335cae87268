#include "engine/model/delta_stack.h"

#include "engine/model/delta_net.h"
#include "engine/model/moe.h"

namespace strata {

namespace {

ValueId add_layer(GraphBuilder& b, const Hparams& hp, ValueId x, uint32_t layer, bool is_last) {
    const ValueId h = b.norm(x, "attn_norm");
    const ValueId mixed = hp.is_recurrent_layer(layer)
                              ? add_delta_net(b, hp, h, OutputGate::Silu, is_last)
                              : add_gated_attention(b, hp, h, is_last);
    if (is_last) x = b.gather(x);
    b.add(x, mixed);
    const ValueId normed = b.norm(x, "post_attention_norm");
    b.add(x, hp.moe.experts > 0 ? moe(b, hp, normed) : b.feed_forward(normed));
    return x;
}

}  // namespace

Graph build_delta_stack(GraphBuilder& b, const Hparams& hp, HeadOrder order) {
    b.use_rope(/*neox=*/true, "");
    b.use_tiled_heads(order == HeadOrder::Tiled);
    ValueId x = b.embed("token_embd");
    for (uint32_t layer = 0; layer < hp.layers; ++layer) {
        b.begin_layer(layer);
        x = add_layer(b, hp, x, layer, layer + 1 == hp.layers);
    }
    b.end_layers();
    return b.finish(b.head(b.norm(x, "output_norm"), "token_embd"));
}

Graph build_delta_draft(GraphBuilder& b, const Hparams& hp) {
    b.use_rope(/*neox=*/true, "");
    b.begin_layer(hp.layers);
    const ValueId x = add_layer(b, hp, b.draft_input("token_embd"), hp.layers, /*is_last=*/true);
    return b.finish(b.draft_head(x, "output_norm", "token_embd"));
}

}  // namespace strata
