// Runs a planned step: the model's rows, then what each gathered row's logits are for. Owns the
// sampler's workspace and the outcomes; no allocation after construction.
//
// Drafts are verified by walking their rows: the token of each is sampled as it would be without
// drafts, with the request's penalties, bias and random number of that position, and the walk goes
// on while it is the draft. For drafts that are certain (the drafter's best token) that is exact
// speculative sampling: a draft is accepted with the model's probability of it, and what replaces
// it is drawn from the rest. So drafts change no token, whether it is sampled or the best.
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

    // One outcome per gather, valid until the next call; the tokens that follow are counted in
    // their requests' sampling state, but for those that end a sequence. Throws Error where the
    // device fails; logits that are not finite are an outcome.
    std::span<const Outcome> run(const Step& step);

  private:
    Runtime& runtime_;
    Sampler sampler_;
    std::vector<Outcome> outcomes_;       // [gather_max]
    std::vector<TokenLogprob> logprobs_;  // [gather_max]
};

}  // namespace strata
