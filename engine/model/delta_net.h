// Blocks of the models that mix gated DeltaNet layers with gated attention: qwen3next, qwen35 and
// their like. Each takes the normed input of a layer and gives what is added to the residual
// stream. Sources: the published models' code in transformers, and the GGUF tensors of llama.cpp.
#pragma once

#include "engine/model/graph_builder.h"

namespace strata {

// What the output of a DeltaNet head is multiplied with: z of the gate projection.
enum class OutputGate : uint8_t { Silu, Sigmoid };

// Gated DeltaNet:
//   u = [q | k | v] of attn_qkv;  c = silu(conv(u));  q, k of c to unit length
//   decay = e^(ssm_a softplus(alpha + ssm_dt));  step = sigmoid(beta)
//   S := decay S;  d = step (v - S^T k);  S := S + k d^T;  o = S^T q / sqrt(head_dim)
//   out = ssm_out (rms(o; ssm_norm) * gate(z))
// alpha and beta come from ssm_alpha and ssm_beta, or from one ssm_ba whose rows go by key head,
// the betas of its value heads before their alphas. qkv and z come from attn_qkv and attn_gate, or
// from one ssm_in, whose rows go by key head: q, k, its values' v, its values' z. With `is_last`
// only rows whose logits are wanted are put out.
ValueId add_delta_net(GraphBuilder& b, const Hparams& hp, ValueId x, OutputGate gate, bool is_last);

// Attention with a gate: attn_q holds for each head the query, then its gate; queries and keys are
// normed per head, the first rope_dims of a head rotate;
//   out = attn_output (attention * sigmoid(gate)).
// With `masks` (GraphBuilder::select_tokens) rows attend to what they choose.
ValueId add_gated_attention(
    GraphBuilder& b, const Hparams& hp, ValueId x, bool is_last, ValueId masks = kNoValue);

}  // namespace strata
