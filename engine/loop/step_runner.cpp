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
        Sequence& sequence = *gather.sequence;
        Request& request = sequence.request;
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
        outcome = {};
        // Place of the row's token among the drafts, from 1; 0 for the token before them.
        const uint32_t place = gather.index - request.output_tokens();
        outcome.is_void = place > 0 && !(outcomes_[i - 1].is_accepted);
        if (outcome.is_void) continue;
        const Sampled sampled = sampler_.sample(logits, request.sampling, gather.index);
        logprobs_[i] = sampled.logprob;
        outcome.is_finite = sampled.fault == SampleFault::None;
        outcome.token = sampled.token;
        outcome.logprob = request.params().logprobs >= 0 ? &logprobs_[i] : nullptr;
        if (!outcome.is_finite || request.stops_at(sampled.token, gather.index)) continue;
        request.sampling.accept(sampled.token);
        outcome.is_accepted =
            place < sequence.step_drafts && sampled.token == sequence.drafts[place];
    }
    return {outcomes_.data(), step.gathers.size()};
}

}  // namespace strata
