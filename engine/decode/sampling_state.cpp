// The counts live in a dense list (walked by the sampler) with an open-addressed index over it.
#include "engine/decode/sampling_state.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/base/assert.h"

namespace strata {

SamplingState::SamplingState(SamplingParams params,
                             uint32_t vocab,
                             std::span<const int32_t> prompt,
                             uint32_t output_tokens_max)
    : params_(std::move(params)) {
    const bool counts_prompt = params_.penalizes_prompt();
    counts_generated_ = params_.penalizes_output();
    if (!counts_generated_) return;
    const uint64_t tokens = (counts_prompt ? prompt.size() : 0) + uint64_t{output_tokens_max};
    const auto distinct = static_cast<size_t>(std::min<uint64_t>(tokens, vocab));
    seen_.reserve(distinct);
    slots_.assign(std::bit_ceil(2 * distinct + 1), 0);
    if (counts_prompt)
        for (const int32_t token : prompt) find_or_add(token);
}

SamplingState::Seen& SamplingState::find_or_add(int32_t token) {
    const size_t mask = slots_.size() - 1;
    // Fibonacci hashing: neighbouring ids, which text is full of, land far apart.
    size_t slot = static_cast<uint32_t>(token) * uint64_t{0x9E37'79B9'7F4A'7C15} >> 32 & mask;
    for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
        Seen& seen = seen_[slots_[slot] - 1];
        if (seen.token == token) return seen;
    }
    STRATA_ASSERT(seen_.size() < seen_.capacity(), "more tokens than output_tokens_max said");
    seen_.push_back({token, 0});
    slots_[slot] = static_cast<uint32_t>(seen_.size());
    return seen_.back();
}

void SamplingState::accept(int32_t token) {
    ++generated_count_;
    if (counts_generated_) ++find_or_add(token).generated;
}

void SamplingState::replay(std::span<const int32_t> generated) {
    for (const int32_t token : generated) accept(token);
}

}  // namespace strata
