// Runs step plans in host memory: every buffer is allocated at construction from the memory plan,
// a step only binds its rows and launches the planned kernels on the thread pool.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/backend/memory_lock.h"
#include "engine/backend/memory_plan.h"
#include "engine/backend/runtime.h"
#include "engine/backend/weight_copies.h"
#include "engine/backend/weights.h"

namespace strata {

class CpuRuntime final : public Runtime {
  public:
    // Loads the weights and allocates the buffers of `plan`. `model`, `registry` and `pool` outlive
    // the runtime; `pool` has plan.threads threads. Throws Error: "plan.range" (a value that the
    // model cannot have), "mem.allocate"; where kernels or other parts are missing, with the code
    // of the first ("kernel.missing", "mode.not_built") and a text that lists all.
    CpuRuntime(const Model& model,
               const ModePlan& plan,
               const Registry& registry,
               ThreadPool& pool,
               const LoadProgress& progress);

    void step(const RowView& rows) override;
    float* logits(uint32_t index) override;
    uint32_t vocab() const override { return vocab_; }
    uint32_t rows_max() const override { return resolved_.step.rows; }
    uint32_t gather_max() const override { return resolved_.step.gather_rows; }

    const MemoryPlan& memory() const { return memory_; }
    const StepPlan& step_plan() const { return resolved_.step; }
    const Resolution& resolution() const { return resolved_.resolution; }
    // Why the memory is not locked although the plan asks for it.
    const std::optional<Reason>& lock_failure() const { return lock_failure_; }

  private:
    struct BoundOp {
        const KernelEntry* kernel = nullptr;
        OpCall call;  // everything but the rows
        bool gathered = false;
    };

    BoundOp bind(uint32_t index) const;
    void layout_slots();
    std::vector<LockRange> lock_ranges() const;
    void launch(const BoundOp& op, const RowView& rows, uint32_t row_count);

    const Model& model_;
    ThreadPool& pool_;
    ResolvedPlan resolved_;
    WeightPlan weight_plan_;
    MemoryPlan memory_;
    Weights weights_;
    WeightCopies copies_;  // empty with mmap
    uint32_t vocab_;
    uint64_t kv_layer_bytes_;
    PageBuffer activations_;
    PageBuffer logits_;
    PageBuffer scratch_;
    PageBuffer kv_;
    std::optional<Reason> lock_failure_;
    std::vector<float*> slots_;
    std::vector<QuantView> quant_slots_;
    std::vector<BoundOp> ops_;
};

// Checks a plan against the model's facts; call it before a pool of plan.threads is made. Throws
// Error{InvalidRequest, "plan.range"} that names the field and the allowed range.
void validate_plan(const Model& model, const ModePlan& plan);

}  // namespace strata
