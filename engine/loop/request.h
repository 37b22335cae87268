// A request as the scheduler takes it: whole, and already checked against the model and the wire's
// limits (intake.h). Whatever is in here cannot break an invariant of the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/decode/sampling_state.h"

namespace strata {

struct Request {
    uint64_t rid = 0;
    uint64_t arrival = 0;  // order of SUBMIT; unique
    int64_t priority = 0;  // higher is served first
    uint32_t prompt_tokens = 0;
    uint32_t credit = 0;  // generated tokens that may be produced, absolute
    uint64_t submitted_us = 0;
    std::vector<int32_t> tokens;  // prompt, then generated (by an earlier engine or this one)
    SamplingState sampling;       // has seen all of `tokens`
    bool may_draft = false;       // it was put into a serving mode with drafts

    const SamplingParams& params() const { return sampling.params(); }
    uint32_t output_tokens() const { return static_cast<uint32_t>(tokens.size()) - prompt_tokens; }
    bool scores_prompt() const { return params().prompt_logprobs >= 0; }

    // Whether sampling `token` as output `output_index` ends the sequence.
    bool stops_at(int32_t token, uint32_t output_index) const {
        const std::vector<int32_t>& stop_ids = params().stop_ids;
        return !params().ignore_eos && output_index >= params().min_tokens &&
               std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end();
    }
};

}  // namespace strata
