// Values of a large table, addressed by the n-grams that end at a token, added to the residual
// streams before one layer ("per-layer embeddings"). Source of the formulas: the published Qwen3.8
// code in transformers (qwen4_exp), and the GGUF tensors of llama.cpp.
#pragma once

#include "engine/model/graph_builder.h"
#include "engine/model/hparams.h"

namespace strata {

// The rows of the table that each token's n-grams name (engine/plan/ngram.h). Comes first in a
// graph, so that they are read from the file while the layers before hp.table.layer run.
ValueId find_table_rows(GraphBuilder& b);

// Adds to the current layer, hp.table.layer:
//
//   e     = the rows, side by side;  key = ple_key e [S, width];  value = ple_value e [width]
//   t_s   = rms(key_s; ple_norm_key_s) . rms(X_s; ple_norm_query_s) / sqrt(width)
//   y_s   = sigmoid(sign(t_s) sqrt(max(|t_s|, 1e-6))) value
//   z     = silu(convolution over time of rms(y_s; ple_norm_conv_s)), hp.table.taps taps that are
//           hp.table.tokens positions apart
//   X_s  += y_s + z_s
void add_table(GraphBuilder& b, const Hparams& hp, ValueId x, ValueId rows);

}  // namespace strata
