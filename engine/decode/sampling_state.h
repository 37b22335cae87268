// What sampling must remember of one sequence: its parameters and which tokens it has seen, as
// sparse counts. Memory is planned when the sequence is admitted; accept() never allocates.
//
// The state is a function of (params, prompt, generated tokens) alone, so a resumed sequence is
// rebuilt by replay() and goes on as the first one would have.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/sampling_params.h"

namespace strata {

class SamplingState {
  public:
    struct Seen {
        int32_t token = 0;
        uint32_t generated = 0;  // times among the generated tokens; 0 = in the prompt only
    };

    // `params` have passed validate() for `vocab`; `prompt` holds ids below `vocab`.
    // `output_tokens_max` bounds the accept() calls (params.max_tokens cut to the context).
    SamplingState(SamplingParams params,
                  uint32_t vocab,
                  std::span<const int32_t> prompt,
                  uint32_t output_tokens_max);

    // Counts one generated token, in order of generation. `token` is below `vocab`.
    void accept(int32_t token);
    // The same for each of `generated`.
    void replay(std::span<const int32_t> generated);

    const SamplingParams& params() const { return params_; }
    uint32_t generated_count() const { return generated_count_; }
    // Distinct tokens that a penalty looks at; empty where no penalty is in use.
    std::span<const Seen> seen() const { return seen_; }

    // True when output token `output_index` must not be a stop id.
    bool masks_stop_ids(uint32_t output_index) const {
        return output_index < params_.min_tokens && !params_.stop_ids.empty();
    }
    // True when the logits of output token `output_index` are changed before choosing.
    bool adjusts(uint32_t output_index) const {
        return !seen_.empty() || !params_.logit_bias.empty() || masks_stop_ids(output_index);
    }

  private:
    Seen& find_or_add(int32_t token);

    SamplingParams params_;
    uint32_t generated_count_ = 0;
    bool counts_generated_ = false;
    std::vector<Seen> seen_;
    std::vector<uint32_t> slots_;  // open addressing: index in seen_ + 1, 0 = free; power of two
};

}  // namespace strata
