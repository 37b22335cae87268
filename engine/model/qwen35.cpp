// Architecture `qwen35` (dense): three gated DeltaNet layers, then one of gated attention, each
// followed by a SwiGlu feed-forward part; value heads tiled over key heads. For text its rope over
// sections is that of the halves of a head (NEOX).
// Sources: the published Qwen3.5 models' code in transformers, and the GGUF tensors of llama.cpp.
#include "engine/model/architecture.h"
#include "engine/model/delta_hparams.h"
#include "engine/model/delta_stack.h"

namespace strata {

namespace {

Graph build(GraphBuilder& b, const Hparams& hp) {
    return build_delta_stack(b, hp, HeadOrder::Tiled);
}

}  // namespace

Architecture qwen35_architecture() {
    return {"qwen35", read_delta_hparams, build, build_delta_draft};
}

}  // namespace strata
