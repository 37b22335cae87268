#include "engine/loop/step_runner.h"

#include "engine/base/assert.h"

namespace strata {

StepRunner::StepRunner(Runtime& runtime)
    : runtime_(runtime),
      sampler_(runtime.vocab()),
      outcomes_(runtime.gather_max()),
      logprobs_(runtime.gather_max()) {}

std::span<const Outcome> StepRunner::run(const Step& step) {
    STRATA_ASSERT(step.gathers.size() <= outcomes_.size(), "more gather rows than the runtime has");
    runtime_.step(step.rows);
    for (uint32_t i = 0; i < step.gathers.size(); ++i) {
        const Gather& gather = step.gathers[i];
        const Request& request = gather.sequence->request;
        const float* logits = runtime_.logits(i);
        Outcome& outcome = outcomes_[i];
        if (gather.use == GatherUse::Score) {
            const Scored scored =
                sampler_.score(logits,
                               request.tokens[gather.index],
                               static_cast<uint32_t>(request.params().prompt_logprobs));
            logprobs_[i] = scored.logprob;
            outcome = {scored.fault == SampleFault::None, 0, &logprobs_[i]};
            continue;
        }
        const Sampled sampled = sampler_.sample(logits, request.sampling, gather.index);
        logprobs_[i] = sampled.logprob;
        outcome = {sampled.fault == SampleFault::None,
                   sampled.token,
                   request.params().logprobs >= 0 ? &logprobs_[i] : nullptr};
    }
    return {outcomes_.data(), step.gathers.size()};
}

}  // namespace strata
