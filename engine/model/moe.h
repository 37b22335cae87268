// A mixture of experts in the place of a feed-forward part: the block that architectures share.
#pragma once

#include "engine/model/graph_builder.h"
#include "engine/model/hparams.h"

namespace strata {

// Adds the mixture of hp.moe to the current layer, [rows, width] -> [rows, width]:
//
//   P = softmax(ffn_gate_inp x) over all experts
//   y = sum over the `used` largest P of w_e ffn_down_exps_e(silu(ffn_gate_exps_e x) *
//       ffn_up_exps_e x), w_e = P_e / (sum of the chosen P) * weights_scale; of equal P the lower
//       expert is chosen
//   y += sigmoid(ffn_gate_inp_shexp . x) * ffn_down_shexp(silu(ffn_gate_shexp x) * ffn_up_shexp x)
//       where hp.moe.shared_ff > 0
//
// Gate and up may be one tensor, ffn_gate_up_exps, an expert's gate rows before its up rows. Where
// the file has scales of experts (NAME.scale [experts]), outputs of an expert are multiplied by its
// own. Source of the formulas: the published Qwen3-MoE and Qwen3-Next models and the GGUF tensors
// of llama.cpp.
ValueId moe(GraphBuilder& b, const Hparams& hp, ValueId x);

}  // namespace strata
