// A request as the scheduler takes it: whole, and already checked against the model and the wire's
// limits (intake.h). Whatever is in here cannot break an invariant of the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace strata {

// When a request ends, apart from the context limit.
struct StopRules {
    uint32_t max_tokens = 0;        // generated tokens, resumed ones included
    uint32_t min_tokens = 0;        // no stop id ends the sequence before
    std::vector<int32_t> stop_ids;  // empty where the request ignores them

    bool stops_at(int32_t token, uint32_t output_index) const {
        return output_index >= min_tokens &&
               std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end();
    }
};

struct Request {
    uint64_t rid = 0;
    uint64_t arrival = 0;  // order of SUBMIT; unique
    int64_t priority = 0;  // higher is served first
    uint32_t prompt_tokens = 0;
    std::vector<int32_t> tokens;  // prompt, then generated (by an earlier engine or this one)
    StopRules stop;
    int32_t prompt_logprobs = -1;  // alternatives per prompt token, -1 = prompt is not scored
    uint32_t credit = 0;           // generated tokens that may be produced, absolute
    uint64_t submitted_us = 0;

    uint32_t output_tokens() const { return static_cast<uint32_t>(tokens.size()) - prompt_tokens; }
    bool scores_prompt() const { return prompt_logprobs >= 0; }
};

}  // namespace strata
