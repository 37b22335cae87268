// Architecture `qwen35moe`: the layers of qwen35 (three gated DeltaNet, one gated attention; value
// heads tiled over key heads) with a mixture of experts and a shared one in the place of each
// feed-forward part. For text its rope over sections is that of the halves of a head (NEOX).
// Sources: the published Qwen3.5 mixtures' code in transformers, and the GGUF tensors of llama.cpp.
#include "engine/model/architecture.h"
#include "engine/model/delta_hparams.h"
#include "engine/model/delta_stack.h"

namespace strata {

namespace {

Graph build(GraphBuilder& b, const Hparams& hp) {
    return build_delta_stack(b, hp, HeadOrder::Tiled);
}

}  // namespace

Architecture qwen35moe_architecture() {
    return {"qwen35moe", read_delta_moe_hparams, build, build_delta_draft};
}

}  // namespace strata
