#include "engine/backend/memory_plan.h"

#include <algorithm>
#include <string>

#include "engine/backend/page_buffer.h"

namespace strata {

namespace {

constexpr uint64_t kBufferAlignment = 4096;  // keeps threads and layers on pages of their own

}  // namespace

uint64_t kv_token_bytes(const Hparams& hparams, DType kv) {
    return uint64_t{2} * hparams.layers * dtype_bytes(kv, hparams.kv_heads * hparams.head_dim);
}

uint64_t kv_layer_bytes(const Hparams& hparams, const ModePlan& plan) {
    const uint64_t elements =
        uint64_t{plan.pages()} * kPageTokens * hparams.kv_heads * hparams.head_dim;
    return align_up(dtype_bytes(plan.kv, elements), kBufferAlignment);
}

MemoryPlan plan_memory(const Model& model,
                       const ModePlan& plan,
                       const StepPlan& step,
                       const Resolution& resolution,
                       const WeightPlan& weights) {
    MemoryPlan memory;
    memory.mapped_bytes = weights.mapped_bytes;
    memory.packed_bytes = weights.packed_bytes;
    const uint64_t rope_elements = model.hparams().rope_dims / 2;
    memory.vector_bytes = (weights.vector_elements + rope_elements) * sizeof(float);
    memory.activation_bytes = step.activation_bytes();
    memory.logits_bytes = step.logits_bytes();
    for (size_t i = 0; i < step.ops.size(); ++i) {
        const BytesFn scratch = resolution.kernels[i]->scratch_bytes;
        const uint64_t bytes = scratch == nullptr ? 0 : scratch(step.ops[i].request);
        memory.scratch_thread_bytes =
            std::max(memory.scratch_thread_bytes, align_up(bytes, kBufferAlignment));
    }
    memory.scratch_bytes = memory.scratch_thread_bytes * plan.threads;
    memory.kv_token_bytes = kv_token_bytes(model.hparams(), plan.kv);
    memory.kv_bytes = 2 * model.hparams().layers * kv_layer_bytes(model.hparams(), plan);
    return memory;
}

std::vector<MemoryPart> MemoryPlan::parts() const {
    return {
        {"weights.mapped", mapped_bytes, "tensors read in place from the file"},
        {"weights.packed",
         packed_bytes + vector_bytes,
         "weights in the layout of their kernels, norms and biases"},
        {"kv",
         kv_bytes,
         "keys and values, " + std::to_string(kv_token_bytes) + " bytes a token; resident as used"},
        {"activations", activation_bytes, "buffers of one step"},
        {"logits", logits_bytes, "rows of logits of one step; resident as used"},
        {"scratch", scratch_bytes, std::to_string(scratch_thread_bytes) + " bytes a thread"},
    };
}

}  // namespace strata
