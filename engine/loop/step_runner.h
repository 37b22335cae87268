// Runs a planned step: the model's rows, then what each gathered row's logits are for. Owns the
// sampler's workspace and the outcomes; no allocation after construction.
#pragma once

#include <span>
#include <vector>

#include "engine/backend/runtime.h"
#include "engine/decode/sampler.h"
#include "engine/loop/step.h"

namespace strata {

class StepRunner {
  public:
    // `runtime` outlives the runner.
    explicit StepRunner(Runtime& runtime);

    // One outcome per gather, valid until the next call. Throws Error where the device fails;
    // logits that are not finite are an outcome.
    std::span<const Outcome> run(const Step& step);

  private:
    Runtime& runtime_;
    Sampler sampler_;
    std::vector<Outcome> outcomes_;       // [gather_max]
    std::vector<TokenLogprob> logprobs_;  // [gather_max]
};

}  // namespace strata
