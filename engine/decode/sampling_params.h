// How the tokens of one request are chosen: mirrors SamplingParams of
// protocol/strata_protocol/messages.py, with the ranges each field may have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace strata {

inline constexpr uint32_t kTopLogprobsMax = 20;     // alternatives that can be reported per token
inline constexpr uint32_t kLogitBiasMax = 1024;     // entries of logit_bias
inline constexpr uint32_t kStopIdsMax = 1024;       // entries of stop_ids
inline constexpr double kGreedyTemperature = 1e-5;  // below it, the best token is taken

struct LogitBias {
    int32_t token = 0;
    double bias = 0;
};

struct SamplingParams {
    uint32_t max_tokens = 16;
    uint32_t min_tokens = 0;
    double temperature = 1.0;  // below kGreedyTemperature: greedy
    uint32_t top_k = 0;        // 0 = off
    double top_p = 1.0;
    double min_p = 0.0;
    double typical_p = 1.0;
    double repetition_penalty = 1.0;  // over prompt and generated tokens
    double presence_penalty = 0.0;    // over generated tokens
    double frequency_penalty = 0.0;   // over generated tokens
    std::vector<LogitBias> logit_bias;
    uint64_t seed = 0;
    uint32_t choice = 0;
    std::vector<int32_t> stop_ids;
    bool ignore_eos = false;  // the loop's business: when a sequence ends
    int32_t logprobs = -1;
    int32_t prompt_logprobs = -1;
    std::vector<std::string> needs;  // features by name, as the peer derived them: features.h

    bool penalizes_prompt() const { return repetition_penalty != 1.0; }
    bool penalizes_output() const {
        return penalizes_prompt() || presence_penalty != 0.0 || frequency_penalty != 0.0;
    }
    bool is_greedy() const { return temperature < kGreedyTemperature; }
};

// The first field out of range as {"sampling.FIELD", sentence with value and allowed range};
// nullopt when all are good. `vocab`: tokens of the model; `logprobs_max`: alternatives the
// service allows, itself limited to kTopLogprobsMax. Everything a client can send ends here:
// SamplingState and Sampler assert nothing about values.
std::optional<Reason> validate(const SamplingParams& params,
                               uint32_t vocab,
                               uint32_t logprobs_max = kTopLogprobsMax);

}  // namespace strata
