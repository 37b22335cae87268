// Hyper-connections: the residual stream of a model is S vectors of one width, which each block
// reads through learned gates and writes through others. Source of the formulas: the published
// Qwen3.8 code in transformers (qwen4_exp), and the GGUF tensors of llama.cpp.
#pragma once

#include <string_view>

#include "engine/model/graph_builder.h"
#include "engine/model/hparams.h"

namespace strata {

// What a block reads, [rows, width], and the gates of what it adds, [rows, S].
struct Connection {
    ValueId input;
    ValueId gates;
};

// Adds to the current layer, with the tensors NAME_norm, NAME_down, NAME_up and NAME_inject:
//
//   n_s   = X_s / sqrt(mean(X_s^2) + eps) * gain_s    of each stream s
//   a     = sigmoid(up silu(down n / S))
//   input = 1/S sum over s of a_s n_s
//   gates = inject n                                   X_s += 2 sigmoid(gates_s / S) y
//
// Division comes before silu and sigmoid. The block's output y goes to add_streams.
Connection connect(GraphBuilder& b, const Hparams& hp, ValueId x, std::string_view name);

// The same without gates, for a head: [rows, width].
ValueId mix(GraphBuilder& b, const Hparams& hp, ValueId x, std::string_view name);

}  // namespace strata
