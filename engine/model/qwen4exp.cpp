// Architecture `qwen4exp`: hyper-connections in the place of the residual stream and its norms,
// three gated DeltaNet layers, whose output gate is a sigmoid, then one of gated attention, each
// followed by a mixture of experts; before one layer a table of n-grams is added. In contexts that
// are longer than what a query may choose, it attends to the blocks of tokens that index keys make
// it choose (choose_tokens); the draft layer attends to everything.
// Sources: the published Qwen3.8 code in transformers (qwen4_exp), and the GGUF tensors of
// llama.cpp.
#include "engine/model/architecture.h"
#include "engine/model/delta_net.h"
#include "engine/model/hyper_connection.h"
#include "engine/model/moe.h"
#include "engine/model/ngram_table.h"
#include "engine/model/qwen4exp_hparams.h"

namespace strata {

namespace {

void skip_index(GraphBuilder& b) {
    for (const char* tensor :
         {"indexer.q_proj", "indexer.k_proj", "indexer.q_norm", "indexer.k_norm"})
        b.skip(tensor);
}

// Index keys of rows into the cache, and the tokens that rows choose:
//   a block key is rope(rms(mean of its tokens' k_proj x; k_norm)) at its first position
//   queries are rope(rms(q_proj x; q_norm)) of each index head
//   chosen are the blocks of largest sum over heads of max(0, query . block key), among those that
//   end before a row or with it; tokens behind the last of them are always seen
ValueId choose_tokens(GraphBuilder& b, const Hparams& hp, ValueId x) {
    const IndexSizes& index = hp.index;
    b.index_keys(b.matmul(x, "indexer.k_proj", index.head_dim), "indexer.k_norm");
    const ValueId projected = b.matmul(x, "indexer.q_proj", index.heads * index.head_dim);
    const ValueId q = b.norm_groups(projected, "indexer.q_norm", index.head_dim);
    b.rope_groups(q, index.head_dim);
    return b.select_tokens(q);
}

ValueId add_mixer(GraphBuilder& b, const Hparams& hp, ValueId x, uint32_t layer, bool is_last) {
    if (hp.is_recurrent_layer(layer)) return add_delta_net(b, hp, x, OutputGate::Sigmoid, is_last);
    if (hp.index.is_indexed_layer(layer))
        return add_gated_attention(b, hp, x, is_last, choose_tokens(b, hp, x));
    skip_index(b);
    return add_gated_attention(b, hp, x, is_last);
}

ValueId add_layer(GraphBuilder& b, const Hparams& hp, ValueId x, uint32_t layer, bool is_last) {
    const Connection attention = connect(b, hp, x, "hc_attn");
    const ValueId mixed = add_mixer(b, hp, attention.input, layer, is_last);
    ValueId gates = attention.gates;
    if (is_last) {
        x = b.gather(x);
        gates = b.gather(gates);
    }
    b.add_streams(x, mixed, gates);
    const Connection feed_forward = connect(b, hp, x, "hc_ffn");
    b.add_streams(x, moe(b, hp, feed_forward.input), feed_forward.gates);
    return x;
}

void use_positions(GraphBuilder& b) {
    b.use_rope(/*neox=*/true, "");
    b.use_tiled_heads(true);
}

Graph build(GraphBuilder& b, const Hparams& hp) {
    use_positions(b);
    const ValueId rows = hp.table.is_present() ? find_table_rows(b) : kNoValue;
    ValueId x = b.spread_streams(b.embed("token_embd"));
    for (uint32_t layer = 0; layer < hp.layers; ++layer) {
        b.begin_layer(layer);
        if (rows != kNoValue && layer == hp.table.layer) add_table(b, hp, x, rows);
        x = add_layer(b, hp, x, layer, layer + 1 == hp.layers);
    }
    b.end_layers();
    return b.finish(b.head(mix(b, hp, b.keep_hidden(x), "output_hc"), "token_embd"));
}

Graph build_draft(GraphBuilder& b, const Hparams& hp) {
    use_positions(b);
    b.begin_layer(hp.layers);
    const ValueId x =
        add_layer(b, hp, b.draft_input_streams("token_embd"), hp.layers, /*is_last=*/true);
    return b.finish(b.draft_logits(mix(b, hp, b.keep_hidden(x), "nextn.hc_head"), "token_embd"));
}

}  // namespace

Architecture qwen4exp_architecture() {
    return {"qwen4exp", read_qwen4exp_hparams, build, build_draft};
}

}  // namespace strata
