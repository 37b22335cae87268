// Runs step plans in host memory: every buffer is allocated at construction from the memory plan,
// a step only binds its rows and launches the planned kernels on the thread pool.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/backend/bound_step.h"
#include "engine/backend/memory_lock.h"
#include "engine/backend/memory_plan.h"
#include "engine/backend/recurrent_state.h"
#include "engine/backend/runtime.h"
#include "engine/model/drafter.h"

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
    DraftSteps* drafts() override { return draft_ ? &draft_steps_ : nullptr; }
    uint32_t vocab() const override { return vocab_; }
    uint32_t rows_max() const override { return resolved_.step.rows; }
    uint32_t gather_max() const override { return resolved_.step.gather_rows; }
    StateFacts states() const override;
    void roll_back(uint32_t sequence, uint32_t position) override {
        states_.roll_back(sequence, position);
    }
    void assume_position(uint32_t sequence, uint32_t position) override {
        states_.assume_position(sequence, position);
    }
    // Whether the next rows of a sequence may begin at `position` (recurrent_state.h).
    bool can_continue(uint32_t sequence, uint32_t position) const {
        return states_.can_continue(sequence, position);
    }

    const MemoryPlan& memory() const { return memory_; }
    const StepPlan& step_plan() const { return resolved_.step; }
    const Resolution& resolution() const { return resolved_.resolution; }
    // Why the memory is not locked although the plan asks for it.
    const std::optional<Reason>& lock_failure() const { return lock_failure_; }

  private:
    class Drafts final : public DraftSteps {
      public:
        explicit Drafts(CpuRuntime& owner) : owner_(owner) {}
        uint32_t width() const override { return owner_.model_.hparams().hidden_width(); }
        uint32_t rows_max() const override { return owner_.draft_->plan().rows; }
        uint32_t gather_max() const override { return owner_.draft_->plan().gather_rows; }
        const float* model_hidden(uint32_t row) const override;
        float* input(uint32_t row) override;
        void step(const RowView& rows) override;
        float* logits(uint32_t index) override;
        const float* hidden(uint32_t index) const override;

      private:
        CpuRuntime& owner_;
    };

    TensorFiles files() const;
    std::vector<LockRange> lock_ranges() const;

    const Model& model_;
    std::optional<Drafter> drafter_;
    ThreadPool& pool_;
    ResolvedPlan resolved_;
    Weights weights_;
    WeightCopies copies_;  // empty with mmap
    MemoryPlan memory_;
    uint32_t vocab_;
    PageBuffer scratch_;
    PageBuffer kv_;
    PageBuffer draft_kv_;
    PageBuffer index_;
    RecurrentState states_;
    BoundStep step_;
    std::optional<BoundStep> draft_;
    Drafts draft_steps_{*this};
    std::optional<Reason> lock_failure_;
};

// Checks a plan against the model's facts; call it before a pool of plan.threads is made. Throws
// Error{InvalidRequest, "plan.range"} that names the field and the allowed range.
void validate_plan(const Model& model, const ModePlan& plan);

}  // namespace strata
