// Turns the graph of a model, or of its drafter, and a mode into the operations that a step really
// launches, in order, with an activation buffer (slot) for every operand. Capabilities are derived
// from this very list and the executor runs it; there is no second description of a step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/model/drafter.h"
#include "engine/model/model.h"
#include "engine/plan/mode.h"
#include "engine/plan/op.h"

namespace strata {

using SlotId = uint32_t;
inline constexpr SlotId kNoSlot = UINT32_MAX;

struct PlannedOp {
    OpRequest request;
    SlotId x = kNoSlot;      // f32 input (gate of SwiGlu, k rows of KvAppend, query of Attention)
    SlotId y = kNoSlot;      // second f32 input (of SwiGlu, KvAppend: v rows, Add: addend, Concat,
                             // GatedAdd: gate)
    SlotId out = kNoSlot;    // f32 output; the tensor changed in place for Add and Rope
    SlotId quant = kNoSlot;  // output of Quantize and RmsNormQuantize, input of an int8 Matmul
    SlotId routing = kNoSlot;  // of the operations of experts; output of Route and GroupExperts
                               // Attention with kFeatureSelected, SelectTokens: masks
    TensorSlice weight;        // Embed, Matmul, ExpertMatmul
    TensorSlice vector;        // RmsNorm gain, Matmul bias, DeltaGates bias
    TensorSlice vector2;       // DeltaGates rates
    uint64_t state_at = 0;  // ShortConv, DeltaRule: first float of their part of a sequence's state
    bool gathered = false;  // runs over the gathered rows
    uint32_t per_row = 1;   // rows of a launch for each row of the step
};

struct StepPlan {
    std::vector<PlannedOp> ops;
    std::vector<uint64_t> slots;        // f32 elements of each activation slot
    std::vector<uint64_t> quant_slots;  // int8 elements of each slot of quantised rows
    SlotId logits = kNoSlot;            // [gather_rows, vocab], shared with nothing else
    SlotId hidden = kNoSlot;            // what the output head reads, where drafts need it: of all
                                        // rows of a model, of the gathered rows of a drafter
    SlotId input = kNoSlot;             // of a drafter: hidden states [rows, width], written by the
                                        // caller before the step, which overwrites them
    uint32_t rows = 0;                  // most rows of a step
    uint32_t gather_rows = 0;           // most gathered rows of a step
    uint64_t state_floats = 0;  // recurrent state of one sequence, all operations (state_layout.h)

    uint64_t activation_bytes() const;  // of all slots but the logits, each with slot_bytes()
    uint64_t logits_bytes() const;
};

// Bytes that a buffer of a slot takes: buffers begin on cache lines of their own.
inline uint64_t slot_bytes(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

// Says whether a kernel exists; asked where the plan has a choice (fused operations).
using ResolvesFn = std::function<bool(const OpRequest&)>;

// Rows of logits that a step may compute: all its rows, as far as they take no more than 64 MiB,
// and always one for each sequence and each draft that is verified.
uint32_t gather_rows_of(const ModePlan& plan, uint32_t vocab);

// Sequences that may draft at once.
uint32_t draft_sequences_of(const ModePlan& plan);

// Bytes of the hidden states [width] that drafts keep between steps: those that wait for the draft
// layer, of each sequence, and the last one of each page of the pool.
uint64_t waiting_hidden_bytes(const ModePlan& plan, uint32_t width);
uint64_t page_hidden_bytes(const ModePlan& plan, uint32_t width);

// Matmuls over weights of F32, F16 or BF16 take f32 activations in every mode; all others take
// `plan.activations`. Rows are rounded to int8 once for all matmuls that share them, fused with
// the norm before where nothing else reads its output and `resolves` knows the fused kernel.
// With plan.spec > 0 it is the step that verifies drafts: it keeps the hidden state of every row.
StepPlan build_step_plan(const Model& model, const ModePlan& plan, const ResolvesFn& resolves);

// The step of a drafter under plan.spec > 0. It takes every row that a step of the model has
// computed, to catch up with the tokens that are now certain, and gives logits of one row for each
// sequence that drafts. Its layer's keys and values are those of layer hparams().layers.
StepPlan build_draft_plan(const Drafter& drafter, const ModePlan& plan, const ResolvesFn& resolves);

// True if some operation of the plan works on int8 activations.
bool uses_int8(const StepPlan& plan);

}  // namespace strata
