// Chooses a token from one row of logits. A pure function of (logits, parameters, tokens seen,
// output index): what else is in the batch, and which thread runs it, changes nothing.
//
// Order, every step on what the former left:
//   1. repetition_penalty on tokens of prompt and output: l > 0 ? l / r : l * r
//   2. presence_penalty and frequency_penalty on output tokens: l - (presence + frequency * count)
//   3. logit_bias: l + bias
//   4. min_tokens: while output_index < min_tokens, stop_ids cannot be chosen
//      (1 and 2 together, and 3, compute in f64 and round to f32; finite values stay finite)
//   5. temperature below kGreedyTemperature: the best token, ties to the lowest id; done.
//      Otherwise every token has the weight w = exp((l - l_best) / temperature), and tokens are
//      ranked by descending l, ties by ascending id.
//   6. top_k: the first k
//   7. typical_p: ordered by |log p + entropy| (ties by rank), the shortest prefix whose share of
//      the remaining weight reaches typical_p
//   8. top_p: ordered by rank, the shortest prefix whose share of the remaining weight reaches
//      top_p; at least one token
//   9. min_p: tokens with at least min_p times the weight of the best remaining one
//  10. draw: the first token, by rank, at which the running sum of weights exceeds u * (their
//      sum), with u = philox_uniform(seed, choice, output_index)
// Log-probabilities are of the softmax of the raw logits, before step 1.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/decode/sampling_params.h"
#include "engine/decode/sampling_state.h"

namespace strata {

struct TopLogprob {
    int32_t token = 0;
    double logprob = 0;
};

// Log-probability of one token and the best alternatives, natural logarithm.
struct TokenLogprob {
    double logprob = 0;
    uint32_t top_count = 0;
    std::array<TopLogprob, kTopLogprobsMax> top_entries{};  // best first, ties by lower id

    std::span<const TopLogprob> top() const { return {top_entries.data(), top_count}; }
};

enum class SampleFault : uint8_t {
    None,
    NonFinite,    // a logit is NaN or infinite: a numeric fault of the model's arithmetic
    NoCandidate,  // min_tokens and stop_ids leave no token (validate() refuses such requests)
};

struct Sampled {
    SampleFault fault = SampleFault::None;
    int32_t token = 0;     // valid without a fault
    TokenLogprob logprob;  // filled where params.logprobs >= 0
};

struct Scored {
    SampleFault fault = SampleFault::None;
    TokenLogprob logprob;
};

// Workspace for one compute thread, sized by the vocabulary; allocates only when constructed.
class Sampler {
  public:
    explicit Sampler(uint32_t vocab);
    ~Sampler();
    Sampler(Sampler&&) noexcept;
    Sampler& operator=(Sampler&&) noexcept;

    // const float* logits;  // [vocab], raw; unchanged
    // Chooses output token `output_index` (0-based among the generated tokens) of the sequence.
    Sampled sample(const float* logits, const SamplingState& state, uint32_t output_index);

    // const float* logits;  // [vocab], raw; unchanged
    // Log-probability of `token` (below vocab) with the `top_count` best alternatives
    // (at most kTopLogprobsMax, and no more than there are tokens).
    Scored score(const float* logits, int32_t token, uint32_t top_count);

    uint32_t vocab() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace strata
