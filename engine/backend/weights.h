// The weights of a loaded model as its kernels want them: packed copies, vectors as f32, and views
// of the mapped file for the rest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/backend/page_buffer.h"
#include "engine/backend/weight_plan.h"
#include "engine/base/thread_pool.h"
#include "engine/model/drafter.h"

namespace strata {

// Told while a model loads: phase ("pack", "allocate"), bytes done, bytes in all. Runs on the
// loading thread; what it throws ends the load.
using LoadProgress = std::function<void(std::string_view phase, uint64_t done, uint64_t total)>;

class Weights {
  public:
    // Packs on `pool` in portions of a few MiB and reports after each. File pages of a tensor that
    // no operation reads in place are released once it is packed. `drafter`: whose step `plan` has
    // beside the model's, or null. Both outlive the weights.
    Weights(const Model& model,
            const Drafter* drafter,
            WeightPlan plan,
            ThreadPool& pool,
            const LoadProgress& progress);

    // `slice` as packed weight `packed` of the plan, or as in the file where that is kNoTensor;
    // empty without a slice.
    WeightView view(const TensorSlice& slice, uint32_t packed) const;
    // Vector `index` of the plan; null for kNoTensor.
    const float* vector(uint32_t index) const;
    std::array<const PageBuffer*, 2> buffers() const { return {&packed_, &vectors_}; }
    const float* rope() const { return rope_; }  // [rope_dims / 2 + 1]: frequencies, magnitude
    const float* draft_rope() const { return draft_rope_; }  // of the drafter, or null
    const WeightPlan& plan() const { return plan_; }

  private:
    void pack_all(ThreadPool& pool, const LoadProgress& progress);
    void load_vectors();
    float* load_rope(const Hparams& hparams, const TensorSlice& factors, float* to) const;

    TensorFiles files_;
    WeightPlan plan_;
    PageBuffer packed_;
    PageBuffer vectors_;
    float* rope_ = nullptr;
    float* draft_rope_ = nullptr;
};

}  // namespace strata
