// Memory of a mode, part by part, computed before any of it is allocated: the model's, and what a
// drafter adds. The executor allocates exactly these sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/backend/weight_plan.h"
#include "engine/plan/mode.h"

namespace strata {

// What drafts add to a mode. Scratch is shared with the model's step.
struct DraftMemory {
    uint64_t mapped_bytes = 0;
    uint64_t copied_bytes = 0;
    uint64_t packed_bytes = 0;
    uint64_t vector_bytes = 0;
    uint64_t activation_bytes = 0;
    uint64_t logits_bytes = 0;
    uint64_t kv_token_bytes = 0;
    uint64_t kv_bytes = 0;
    uint64_t hidden_token_bytes = 0;  // of the pool's, rounded up
    uint64_t hidden_bytes = 0;        // of sequences and of the pool's pages, kept by the loop

    uint64_t bytes_without_kv() const {
        return mapped_bytes + copied_bytes + packed_bytes + vector_bytes + activation_bytes +
               logits_bytes + hidden_bytes;
    }
};

struct MemoryPlan {
    uint64_t mapped_bytes = 0;       // file pages that steps read in place
    uint64_t mapped_page_bytes = 0;  // whole pages of the files that they lie in, also drafters'
    uint64_t copied_bytes = 0;       // the same weights in memory of their own, without mmap
    uint64_t on_demand_bytes = 0;    // of tables that stay in the file, in no sum
    uint64_t packed_bytes = 0;
    uint64_t vector_bytes = 0;  // norms, biases, rope tables
    uint64_t activation_bytes = 0;
    uint64_t logits_bytes = 0;
    uint64_t scratch_thread_bytes = 0;  // for each thread
    uint64_t scratch_bytes = 0;
    uint64_t kv_token_bytes = 0;     // keys and values of one token in the model's layers
    uint64_t kv_bytes = 0;           // of the whole pool
    uint64_t index_token_bytes = 0;  // index keys of one token, rounded up
    uint64_t index_bytes = 0;        // of the whole pool
    uint64_t state_slot_bytes = 0;   // recurrent state of one sequence
    uint64_t state_bytes = 0;        // of all sequences
    uint64_t checkpoint_bytes = 0;   // of the states kept for the prefix cache
    std::optional<DraftMemory> draft;

    // Keys and values of one token in all layers, and what a drafter adds.
    uint64_t pool_token_bytes() const {
        return kv_token_bytes + index_token_bytes +
               (draft ? draft->kv_token_bytes + draft->hidden_token_bytes : 0);
    }

    uint64_t bytes_without_kv() const {
        return mapped_bytes + copied_bytes + packed_bytes + vector_bytes + activation_bytes +
               logits_bytes + scratch_bytes + state_bytes + checkpoint_bytes +
               (draft ? draft->bytes_without_kv() : 0);
    }
    // What counts against RLIMIT_MEMLOCK when all of it is locked: whole pages.
    uint64_t lock_bytes() const;
    std::vector<MemoryPart> parts() const;  // in the terms of reports
    std::vector<MemoryPart> parts_without_kv() const;
};

// Bytes of keys and values of one token in `layers` layers.
uint64_t kv_token_bytes(const Hparams& hparams, DType kv, uint32_t layers);

// Bytes of the keys (or of the values) of one layer, page-aligned.
uint64_t kv_layer_bytes(const Hparams& hparams, const ModePlan& plan);

// Bytes of the index keys of one layer, page-aligned.
struct IndexBytes {
    uint64_t keys = 0;
    uint64_t blocks = 0;

    uint64_t total() const { return keys + blocks; }
};
IndexBytes index_layer_bytes(const Hparams& hparams, const ModePlan& plan);

// Sizes the pools of a model and its drafter for plan.kv and plan.kv_tokens; all else stays.
void plan_pools(MemoryPlan& memory,
                const Model& model,
                const Drafter* drafter,
                const ModePlan& plan);

// `drafter` as for resolve_mode. Operations without a kernel need no scratch.
MemoryPlan plan_memory(const Model& model,
                       const Drafter* drafter,
                       const ModePlan& plan,
                       const ResolvedPlan& resolved,
                       const WeightPlan& weights);

}  // namespace strata
