// Memory of a mode, part by part, computed before any of it is allocated. The executor allocates
// exactly these sizes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/weight_plan.h"
#include "engine/plan/mode.h"

namespace strata {

struct MemoryPlan {
    uint64_t mapped_bytes = 0;  // file pages that steps read in place
    uint64_t packed_bytes = 0;
    uint64_t vector_bytes = 0;  // norms, biases, rope tables
    uint64_t activation_bytes = 0;
    uint64_t logits_bytes = 0;
    uint64_t scratch_thread_bytes = 0;  // for each thread
    uint64_t scratch_bytes = 0;
    uint64_t kv_token_bytes = 0;  // keys and values of one token in all layers
    uint64_t kv_bytes = 0;        // of the whole pool

    uint64_t bytes_without_kv() const {
        return mapped_bytes + packed_bytes + vector_bytes + activation_bytes + logits_bytes +
               scratch_bytes;
    }
    std::vector<MemoryPart> parts() const;  // in the terms of reports
};

// Bytes of keys and values of one token in all layers.
uint64_t kv_token_bytes(const Hparams& hparams, DType kv);

// Bytes of the keys (or of the values) of one layer, page-aligned.
uint64_t kv_layer_bytes(const Hparams& hparams, const ModePlan& plan);

MemoryPlan plan_memory(const Model& model,
                       const ModePlan& plan,
                       const StepPlan& step,
                       const Resolution& resolution,
                       const WeightPlan& weights);

}  // namespace strata
