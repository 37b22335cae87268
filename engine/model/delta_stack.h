// The layers that qwen3next, qwen35 and qwen35moe share: gated DeltaNet or gated attention, then a
// SwiGlu part, or a mixture of experts where the sizes have one (hp.moe), each added to the
// residual stream behind a norm of its own.
// Sources: the published models' code in transformers, and the GGUF tensors of llama.cpp.
#pragma once

#include "engine/model/graph_builder.h"

namespace strata {

// Which key head the value heads of a DeltaNet layer have, as the architecture's files order them:
// head j has j % key heads, or neighbours share one.
enum class HeadOrder : uint8_t { Tiled, Grouped };

Graph build_delta_stack(GraphBuilder& b, const Hparams& hp, HeadOrder order);

// The draft layer: one of gated attention.
Graph build_delta_draft(GraphBuilder& b, const Hparams& hp);

}  // namespace strata
