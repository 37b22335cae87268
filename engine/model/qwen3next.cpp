// Architecture `qwen3next`: three gated DeltaNet layers, then one of gated attention, each followed
// by a mixture of experts with a shared one; the value heads of a key head are neighbours.
// Sources: the published Qwen3-Next models' code in transformers, and the GGUF tensors of
// llama.cpp.
#include "engine/model/architecture.h"
#include "engine/model/delta_hparams.h"
#include "engine/model/delta_stack.h"

namespace strata {

namespace {

Graph build(GraphBuilder& b, const Hparams& hp) {
    return build_delta_stack(b, hp, HeadOrder::Grouped);
}

}  // namespace

Architecture qwen3next_architecture() {
    return {"qwen3next", read_delta_moe_hparams, build, build_delta_draft};
}

}  // namespace strata
