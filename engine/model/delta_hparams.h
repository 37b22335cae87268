// Sizes of models with gated DeltaNet layers, from GGUF metadata.
#pragma once

#include <string_view>

#include "engine/model/hparams.h"

namespace strata {

// Adds to `hp`, whose other sizes are read, which layers are recurrent (attention.recurrent_layers,
// else full_attention_interval) and the sizes of these (ssm.*). Throws Error "model.metadata" that
// names the key: InvalidRequest for values out of range or at odds with each other, Unsupported for
// what would change the arithmetic.
void read_delta_sizes(const gguf::File& file, std::string_view architecture, Hparams& hp);

// Sizes of a dense model with such layers (qwen35).
Hparams read_delta_hparams(const gguf::File& file, std::string_view architecture);

// Sizes of one whose feed-forward parts are mixtures of experts (qwen3next, qwen35moe).
Hparams read_delta_moe_hparams(const gguf::File& file, std::string_view architecture);

}  // namespace strata
