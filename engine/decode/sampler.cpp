// Steps 1-5 and log-probabilities; the weighted draw is in candidates.cpp.
#include "engine/decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/base/assert.h"
#include "engine/decode/candidates.h"
#include "engine/decode/exponential.h"
#include "engine/decode/philox.h"
#include "engine/decode/ranking.h"

namespace strata {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Rounds to f32; what would overflow stays at the largest finite value.
float to_logit(double value) {
    constexpr auto kMax = double{std::numeric_limits<float>::max()};
    return static_cast<float>(std::clamp(value, -kMax, kMax));
}

void adjust(float* x, const SamplingState& state, uint32_t output_index) {
    const SamplingParams& params = state.params();
    for (const SamplingState::Seen& seen : state.seen()) {
        float& logit = x[seen.token];
        double value = double{logit};
        value = value > 0 ? value / params.repetition_penalty : value * params.repetition_penalty;
        if (seen.generated > 0)
            value -= params.presence_penalty + params.frequency_penalty * seen.generated;
        logit = to_logit(value);
    }
    for (const LogitBias& entry : params.logit_bias)
        x[entry.token] = to_logit(double{x[entry.token]} + entry.bias);
    if (state.masks_stop_ids(output_index))
        for (const int32_t token : params.stop_ids) x[token] = kMasked;
}

}  // namespace

namespace {

// The row's log softmax. Two subtractions: where logits are huge, log(sum exp(x - best)) is lost
// beside `best`.
struct LogSoftmax {
    double best = 0;
    double log_sum = 0;  // of exp(x - best)
    double operator()(float logit) const { return (double{logit} - best) - log_sum; }
};

}  // namespace

struct Sampler::Impl {
    explicit Impl(uint32_t size) : vocab(size), ranking(size), candidates(size), adjusted(size) {}

    // Fills the alternatives of the row that `ranking` has begun; returns its log softmax.
    LogSoftmax fill_top(const float* x, uint32_t top_count, TokenLogprob& out) {
        const float best = ranking.best_logit();
        const LogSoftmax logprob{double{best}, std::log(sum_weight(x, vocab, best, 1.0))};
        out.top_count = std::min({top_count, kTopLogprobsMax, vocab});
        const std::span<const RankKey> ranks = ranking.first(out.top_count);
        for (uint32_t i = 0; i < out.top_count; ++i)
            out.top_entries[i] = {rank_token(ranks[i]), logprob(rank_logit(ranks[i]))};
        return logprob;
    }

    uint32_t vocab;
    Ranking ranking;
    Candidates candidates;
    std::vector<float> adjusted;  // [vocab]
};

Sampler::Sampler(uint32_t vocab) : impl_(std::make_unique<Impl>(vocab)) {
    STRATA_ASSERT(vocab > 0, "a model has at least one token");
}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

Sampled Sampler::sample(const float* logits, const SamplingState& state, uint32_t output_index) {
    Sampled result;
    const SamplingParams& params = state.params();
    Ranking& ranking = impl_->ranking;
    if (!ranking.begin(logits)) {
        result.fault = SampleFault::NonFinite;
        return result;
    }
    LogSoftmax logprob;
    if (params.logprobs >= 0)
        logprob = impl_->fill_top(logits, static_cast<uint32_t>(params.logprobs), result.logprob);

    const float* x = logits;
    if (state.adjusts(output_index)) {
        std::copy(logits, logits + impl_->vocab, impl_->adjusted.begin());
        adjust(impl_->adjusted.data(), state, output_index);
        x = impl_->adjusted.data();
        // Masked tokens are -inf by intent and have no rank.
        ranking.begin(x);
        if (ranking.best_logit() == kMasked) {
            result.fault = SampleFault::NoCandidate;
            return result;
        }
    }
    if (params.is_greedy()) {
        result.token = ranking.best_token();
    } else {
        const double u = philox_uniform(params.seed, params.choice, output_index);
        result.token = impl_->candidates.draw(x, ranking, params, u);
    }
    if (params.logprobs >= 0) result.logprob.logprob = logprob(logits[result.token]);
    return result;
}

Scored Sampler::score(const float* logits, int32_t token, uint32_t top_count) {
    Scored result;
    if (!impl_->ranking.begin(logits)) {
        result.fault = SampleFault::NonFinite;
        return result;
    }
    const LogSoftmax logprob = impl_->fill_top(logits, top_count, result.logprob);
    result.logprob.logprob = logprob(logits[token]);
    return result;
}

uint32_t Sampler::vocab() const {
    return impl_->vocab;
}

}  // namespace strata
