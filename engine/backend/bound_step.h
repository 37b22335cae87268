// A step plan bound to memory: its activation slots laid out in buffers of its own, each operation
// with its kernel, weights and cache. Launching it binds the rows and allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/memory_plan.h"
#include "engine/backend/page_buffer.h"
#include "engine/backend/recurrent_state.h"
#include "engine/backend/resolve.h"
#include "engine/backend/runtime.h"
#include "engine/backend/weight_copies.h"
#include "engine/backend/weights.h"
#include "engine/base/thread_pool.h"

namespace strata {

// Index keys of all indexed layers: raw keys of the first, its block keys, then the next one's.
struct IndexPool {
    std::byte* data = nullptr;
    IndexBytes layer;
};

// What a step is bound to. All outlive the bound step.
struct StepBinding {
    const StepPlan& plan;
    const Resolution& resolution;  // complete
    const OpWeights& op_weights;   // of `plan` in weights.plan()
    const Weights& weights;
    const WeightCopies& copies;  // empty with mmap
    TensorFiles files;
    const Hparams& hparams;
    const float* rope;
    std::byte* kv;         // keys of `first_layer`, then its values, then the next layer's
    uint32_t first_layer;  // whose cache begins at `kv`
    uint64_t kv_layer_bytes;
    std::byte* scratch;
    uint64_t scratch_thread_bytes;
    const RecurrentState* states = nullptr;  // of a plan with recurrent layers
    IndexPool index = {};                    // of a plan with indexed layers
};

class BoundStep {
  public:
    // Allocates plan.activation_bytes() and plan.logits_bytes(). Throws Error "mem.allocate".
    explicit BoundStep(const StepBinding& binding);

    // Computes `rows`; operation `index` is told to the observer before its launch.
    void run(const RowView& rows, ThreadPool& pool, StepObserver& observer) const;

    const StepPlan& plan() const { return plan_; }
    float* slot(SlotId id) const { return slots_[id]; }
    const PageBuffer& activations() const { return activations_; }
    const PageBuffer& logits() const { return logits_; }

  private:
    struct BoundOp {
        const KernelEntry* kernel = nullptr;
        OpCall call;  // everything but the rows
        bool gathered = false;
        uint32_t per_row = 1;
    };

    void layout_slots();
    BoundOp bind(const StepBinding& to, uint32_t index) const;
    void launch(const BoundOp& op, const RowView& rows, uint32_t row_count, ThreadPool& pool) const;

    const StepPlan& plan_;
    std::byte* scratch_;
    uint64_t scratch_thread_bytes_;
    PageBuffer activations_;
    PageBuffer logits_;
    std::vector<float*> slots_;
    std::vector<QuantView> quant_slots_;
    std::vector<BoundOp> ops_;
};

}  // namespace strata
