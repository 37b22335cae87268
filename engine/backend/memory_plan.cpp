#include "engine/backend/memory_plan.h"

#include <algorithm>
#include <string>

#include "engine/backend/memory_lock.h"
#include "engine/backend/page_buffer.h"
#include "engine/backend/recurrent_state.h"
#include "engine/backend/weight_copies.h"
#include "engine/plan/index_layout.h"

namespace strata {

namespace {

constexpr uint64_t kBufferAlignment = 4096;  // keeps threads and layers on pages of their own

// Of one thread, for any operation of the step.
uint64_t scratch_thread_bytes(const StepPlan& step, const Resolution& resolution) {
    uint64_t most = 0;
    for (size_t i = 0; i < step.ops.size(); ++i) {
        const KernelEntry* kernel = resolution.kernels[i];
        const BytesFn scratch = kernel == nullptr ? nullptr : kernel->scratch_bytes;
        const uint64_t bytes = scratch == nullptr ? 0 : scratch(step.ops[i].request);
        most = std::max(most, align_up(bytes, kBufferAlignment));
    }
    return most;
}

uint64_t vector_bytes(uint64_t elements, const Hparams& hparams) {
    return (elements + rope_table_elements(hparams)) * sizeof(float);
}

DraftMemory plan_draft_memory(const Drafter& drafter,
                              const ModePlan& plan,
                              const StepPlan& step,
                              const WeightBytes& weights) {
    DraftMemory memory;
    (plan.mmap ? memory.mapped_bytes : memory.copied_bytes) = weights.mapped;
    memory.packed_bytes = weights.packed;
    memory.vector_bytes = vector_bytes(weights.elements, drafter.hparams());
    memory.activation_bytes = step.activation_bytes();
    memory.logits_bytes = step.logits_bytes();
    return memory;
}

// Weights that kernels read as the file has them.
MemoryPart in_place_part(const std::string& whose,
                         uint64_t mapped_bytes,
                         uint64_t copied_bytes,
                         const std::string& what) {
    if (copied_bytes > 0)
        return {whose + "weights.copied", copied_bytes, what + " copied as the file has them"};
    return {whose + "weights.mapped", mapped_bytes, what + " read in place from the file"};
}

// Whole pages of the files that hold what steps read in place.
uint64_t mapped_page_bytes(const TensorFiles& files, const WeightPlan& weights) {
    uint64_t bytes = 0;
    for (uint32_t file = 0; file < kFileCount; ++file)
        for (const FilePages& pages : mapped_file_pages(files, weights, file)) bytes += pages.bytes;
    return bytes;
}

void append_parts(std::vector<MemoryPart>& parts, const DraftMemory& draft) {
    parts.push_back(in_place_part(
        "drafter.", draft.mapped_bytes, draft.copied_bytes, "tensors of drafts alone"));
    parts.push_back({"drafter.weights.packed",
                     draft.packed_bytes + draft.vector_bytes,
                     "weights that only drafts read, in the layout of their kernels"});
    parts.push_back({"drafter.kv",
                     draft.kv_bytes,
                     "keys and values of the draft layer, " + std::to_string(draft.kv_token_bytes) +
                         " bytes a token; resident as used"});
    parts.push_back({"drafter.activations", draft.activation_bytes, "buffers of one draft step"});
    parts.push_back({"drafter.logits", draft.logits_bytes, "rows of logits of one draft step"});
    parts.push_back({"drafter.hidden",
                     draft.hidden_bytes,
                     "hidden states that wait for the draft layer, and one for each page of keys; "
                     "resident as used"});
}

}  // namespace

uint64_t kv_token_bytes(const Hparams& hparams, DType kv, uint32_t layers) {
    return uint64_t{2} * layers * dtype_bytes(kv, hparams.kv_heads * hparams.head_dim);
}

uint64_t kv_layer_bytes(const Hparams& hparams, const ModePlan& plan) {
    const uint64_t elements =
        uint64_t{plan.pages()} * kPageTokens * hparams.kv_heads * hparams.head_dim;
    return align_up(dtype_bytes(plan.kv, elements), kBufferAlignment);
}

IndexBytes index_layer_bytes(const Hparams& hparams, const ModePlan& plan) {
    const IndexSizes& index = hparams.index;
    if (index.is_indexed.empty()) return {};
    const DType type = index_type(plan.kv);
    const uint64_t tokens = uint64_t{plan.pages()} * kPageTokens;
    const auto bytes = [&](uint64_t elements) {
        return align_up(dtype_bytes(type, elements), kBufferAlignment);
    };
    return {bytes(index_key_elements(tokens, index.head_dim)),
            bytes(index_block_elements(tokens, index.head_dim, index.block_tokens))};
}

void plan_pools(MemoryPlan& memory,
                const Model& model,
                const Drafter* drafter,
                const ModePlan& plan) {
    const Hparams& hparams = model.hparams();
    memory.kv_token_bytes = kv_token_bytes(hparams, plan.kv, hparams.kv_layers());
    memory.kv_bytes = 2ull * hparams.kv_layers() * kv_layer_bytes(hparams, plan);
    const IndexSizes& index = hparams.index;
    if (!index.is_indexed.empty()) {
        const uint64_t keys = dtype_bytes(index_type(plan.kv), index.head_dim);
        memory.index_token_bytes =
            index.layers() * (keys + (keys + index.block_tokens - 1) / index.block_tokens);
        memory.index_bytes = index.layers() * index_layer_bytes(hparams, plan).total();
    }
    if (!memory.draft) return;
    const Hparams& drafters = drafter->hparams();
    memory.draft->kv_token_bytes = kv_token_bytes(drafters, plan.kv, drafters.draft_layers);
    memory.draft->kv_bytes = 2 * drafters.draft_layers * kv_layer_bytes(drafters, plan);
    memory.draft->hidden_token_bytes =
        (drafters.hidden_width() * sizeof(float) + kPageTokens - 1) / kPageTokens;
    memory.draft->hidden_bytes = waiting_hidden_bytes(plan, drafters.hidden_width()) +
                                 page_hidden_bytes(plan, drafters.hidden_width());
}

MemoryPlan plan_memory(const Model& model,
                       const Drafter* drafter,
                       const ModePlan& plan,
                       const ResolvedPlan& resolved,
                       const WeightPlan& weights) {
    const Hparams& hparams = model.hparams();
    const StepPlan& step = resolved.step;
    MemoryPlan memory;
    const uint64_t in_place = weights.mapped_bytes - weights.drafters.mapped;
    const TensorFiles files = resolved.draft ? drafter->files() : model.files();
    if (plan.mmap) {
        memory.mapped_bytes = in_place;
        memory.mapped_page_bytes = mapped_page_bytes(files, weights);
    } else {  // what aligns the copies is counted as the model's
        memory.copied_bytes = weight_copies_bytes(files, weights) - weights.drafters.mapped;
    }
    memory.on_demand_bytes = weights.on_demand_bytes;
    memory.packed_bytes = weights.packed_bytes - weights.drafters.packed;
    memory.vector_bytes =
        vector_bytes(weights.vector_elements - weights.drafters.elements, hparams);
    memory.activation_bytes = step.activation_bytes();
    memory.logits_bytes = step.logits_bytes();
    memory.state_slot_bytes = state_slot_floats(step.state_floats) * sizeof(float);
    memory.state_bytes = memory.state_slot_bytes * plan.batch;
    memory.checkpoint_bytes = memory.state_slot_bytes * checkpoints_of(plan, step);
    memory.scratch_thread_bytes = scratch_thread_bytes(step, resolved.resolution);
    if (resolved.draft) {
        memory.draft = plan_draft_memory(*drafter, plan, *resolved.draft, weights.drafters);
        memory.scratch_thread_bytes =
            std::max(memory.scratch_thread_bytes,
                     scratch_thread_bytes(*resolved.draft, resolved.draft_resolution));
    }
    memory.scratch_bytes = memory.scratch_thread_bytes * plan.threads;
    plan_pools(memory, model, drafter, plan);
    return memory;
}

uint64_t MemoryPlan::lock_bytes() const {
    const DraftMemory more = draft.value_or(DraftMemory{});
    uint64_t bytes = mapped_page_bytes;
    for (const uint64_t part : {copied_bytes + more.copied_bytes,
                                packed_bytes + more.packed_bytes,
                                vector_bytes + more.vector_bytes,
                                activation_bytes,
                                logits_bytes,
                                scratch_bytes,
                                kv_bytes,
                                index_bytes,
                                state_bytes + checkpoint_bytes,
                                more.activation_bytes,
                                more.logits_bytes,
                                more.kv_bytes}) {
        bytes += page_bytes(part);
    }
    return bytes;
}

std::vector<MemoryPart> MemoryPlan::parts_without_kv() const {
    std::vector<MemoryPart> out = parts();
    std::erase_if(out, [](const MemoryPart& part) {
        return part.name == "kv" || part.name == "kv.index" || part.name == "drafter.kv";
    });
    return out;
}

std::vector<MemoryPart> MemoryPlan::parts() const {
    std::vector<MemoryPart> parts = {
        in_place_part("", mapped_bytes, copied_bytes, "tensors"),
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
    if (index_bytes > 0) {
        parts.push_back({"kv.index",
                         index_bytes,
                         "keys by which rows choose what they attend to, " +
                             std::to_string(index_token_bytes) +
                             " bytes a token; resident as used"});
    }
    if (on_demand_bytes > 0) {
        MemoryPart part{"weights.on_demand",
                        0,
                        std::to_string(on_demand_bytes) +
                            " bytes of tables stay in the file: a token reads a few rows, and "
                            "memory holds what the system keeps of them"};
        part.on_demand_bytes = on_demand_bytes;
        parts.push_back(part);
    }
    if (state_bytes > 0) {
        parts.push_back({"state",
                         state_bytes,
                         "recurrent states, " + std::to_string(state_slot_bytes) +
                             " bytes a sequence; resident as used"});
        parts.push_back({"state.checkpoints",
                         checkpoint_bytes,
                         "recurrent states at prefixes that the cache keeps; resident as used"});
    }
    if (draft) {
        append_parts(parts, *draft);
    }
    return parts;
}

}  // namespace strata
