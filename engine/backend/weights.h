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

namespace strata {

// Told while a model loads: phase ("pack", "allocate"), bytes done, bytes in all. Runs on the
// loading thread; what it throws ends the load.
using LoadProgress = std::function<void(std::string_view phase, uint64_t done, uint64_t total)>;

class Weights {
  public:
    // Packs on `pool` in portions of a few MiB and reports after each. File pages of a tensor that
    // no operation reads in place are released once it is packed. `model` outlives the weights.
    Weights(const Model& model,
            const StepPlan& step,
            WeightPlan plan,
            ThreadPool& pool,
            const LoadProgress& progress);

    // Of operation `op` of the step plan; empty view or null where it has none.
    WeightView view(uint32_t op) const;
    const float* vector(uint32_t op) const;
    std::array<const PageBuffer*, 2> buffers() const { return {&packed_, &vectors_}; }
    const float* rope() const { return rope_; }  // [rope_dims / 2] inverse frequencies

  private:
    void pack_all(ThreadPool& pool, const LoadProgress& progress);
    void load_vectors();

    const Model& model_;
    TensorFiles files_;
    const StepPlan& step_;
    WeightPlan plan_;
    PageBuffer packed_;
    PageBuffer vectors_;
    float* rope_ = nullptr;
};

}  // namespace strata
