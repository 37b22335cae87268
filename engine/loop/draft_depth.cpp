#include "engine/loop/draft_depth.h"

#include <algorithm>

namespace strata {

namespace {

constexpr double kCostWeight = 0.1;  // of the newest measurement in the moving average
constexpr double kOutlier = 2.0;     // times the average: a step that was interrupted
constexpr double kRowGuess = 0.12;   // what a row more is taken to cost before it is measured
constexpr double kDraftGuess = 0.3;  // of a model step, the same for a draft step
constexpr float kAging = 0.95f;      // of earlier drafts for each that is verified
constexpr float kOverallAging = 0.998f;
constexpr double kPriorRate = 0.6;    // of acceptance, before anything is known
constexpr double kPriorWeight = 8;    // drafts that the prior stands for
constexpr double kOverallWeight = 4;  // drafts that what other sequences had stands for

}  // namespace

void StepCosts::add(uint32_t size, double us) {
    Cost& cost = costs_[std::min<size_t>(size, costs_.size() - 1)];
    if (cost.count > 0) us = std::min(us, cost.us * kOutlier);
    ++cost.count;
    cost.us += std::max(kCostWeight, 1.0 / cost.count) * (us - cost.us);
}

double StepCosts::at(uint32_t size) const {
    size = std::min<uint32_t>(size, static_cast<uint32_t>(costs_.size()) - 1);
    for (uint32_t less = size + 1; less > 0; --less) {
        const Cost& cost = costs_[less - 1];
        if (cost.count > 0) return cost.us * (1 + kRowGuess * (size - (less - 1)));
    }
    for (uint32_t more = size + 1; more < costs_.size(); ++more) {
        if (costs_[more].count > 0) return costs_[more].us / (1 + kRowGuess * (more - size));
    }
    return 0;
}

DraftDepth::DraftDepth(uint32_t rows_max, uint32_t sequences, uint32_t spec)
    : spec_(spec), model_(rows_max), first_draft_(sequences), next_draft_(sequences) {
    depths_.reserve(sequences);
    best_.reserve(sequences);
}

void DraftDepth::verified(DraftState& state, uint32_t drafts, uint32_t accepted) {
    for (uint32_t place = 0; place < std::min(drafts, accepted + 1); ++place) {
        const float is_right = place < accepted ? 1.0f : 0.0f;
        const auto count = [&](Acceptance& seen, float aging) {
            seen.tried = seen.tried * aging + 1;
            seen.accepted = seen.accepted * aging + is_right;
        };
        count(state.by_place[place], kAging);
        count(overall_[place], kOverallAging);
    }
}

double DraftDepth::expected_tokens(const DraftState& state, uint32_t depth) const {
    double tokens = 1;
    double reach = 1;
    for (uint32_t place = 0; place < depth; ++place) {
        const Acceptance& all = overall_[place];
        const Acceptance& own = state.by_place[place];
        const double overall =
            (double{all.accepted} + kPriorRate * kPriorWeight) / (double{all.tried} + kPriorWeight);
        reach *= (double{own.accepted} + overall * kOverallWeight) /
                 (double{own.tried} + kOverallWeight);
        tokens += reach;
    }
    return tokens;
}

// Tokens for the time, with depths_.
double DraftDepth::rate(std::span<const DraftCandidate> candidates, uint32_t others) const {
    std::array<uint32_t, kSpecMax> at_least{};  // sequences with more drafts than the index
    uint32_t rows = others;
    double tokens = others;
    for (size_t i = 0; i < candidates.size(); ++i) {
        rows += 1 + depths_[i];
        tokens += expected_tokens(candidates[i].sequence->draft, depths_[i]);
        for (uint32_t place = 0; place < depths_[i]; ++place) ++at_least[place];
    }
    const double known = model_.at(rows);
    const double model = known > 0 ? known : 1 + kRowGuess * rows;
    const double alone = model_.at(1) > 0 ? model_.at(1) : 1;
    double us = model;
    for (uint32_t place = 0; place < spec_ && at_least[place] > 0; ++place) {
        const StepCosts& costs = place == 0 ? first_draft_ : next_draft_;
        const double draft = costs.at(at_least[place]);
        us += draft > 0 ? draft : alone * kDraftGuess;
    }
    return tokens / us;
}

void DraftDepth::choose_best(std::span<const DraftCandidate> candidates, uint32_t others) {
    depths_.assign(candidates.size(), 0);
    best_ = depths_;
    double best = rate(candidates, others) * kGainMin;
    for (uint32_t depth = 1; depth <= spec_; ++depth) {
        for (size_t i = 0; i < candidates.size(); ++i) {
            depths_[i] = std::min(depth, candidates[i].limit);
        }
        double found = rate(candidates, others);
        // The same depth is not best for all: each in turn takes its own.
        for (size_t i = 0; i < candidates.size() && candidates.size() > 1; ++i) {
            const uint32_t was = depths_[i];
            uint32_t chosen = was;
            for (uint32_t tried = 0; tried < was; ++tried) {
                depths_[i] = tried;
                const double with = rate(candidates, others);
                if (with <= found) continue;
                found = with;
                chosen = tried;
            }
            depths_[i] = chosen;
        }
        if (found <= best) continue;
        best = found;
        best_ = depths_;
    }
    depths_.swap(best_);
}

void DraftDepth::try_again(DraftState& state, uint32_t& depth) const {
    if (depth > 0) {
        state.idle_steps = 0;
        state.retry_after = 0;
        state.trial_steps = 0;
        return;
    }
    if (state.retry_after == 0) state.retry_after = kRetryFirst;
    if (state.trial_steps > 0) {
        --state.trial_steps;
        depth = 1;
    } else if (++state.idle_steps >= state.retry_after) {
        state.idle_steps = 0;
        state.retry_after = std::min(state.retry_after * 2, kRetryMax);
        state.trial_steps = kTrialSteps;
    }
}

std::span<const uint32_t> DraftDepth::choose(std::span<const DraftCandidate> candidates,
                                             uint32_t others) {
    choose_best(candidates, others);
    for (size_t i = 0; i < candidates.size(); ++i) {
        try_again(candidates[i].sequence->draft, depths_[i]);
    }
    return depths_;
}

}  // namespace strata
