// Each step only lowers `bound_` (or replaces the ranks, typical_p) and tracks the total weight;
// ranks are asked for one by one, so a peaked row is never sorted beyond its few likely tokens.
#include "engine/decode/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/decode/exponential.h"

namespace strata {
namespace {

constexpr double kUnknown = -1;

}  // namespace

Candidates::Candidates(uint32_t vocab) : vocab_(vocab), surprises_(vocab), typical_(vocab) {}

// True when there is a candidate of this rank.
bool Candidates::has(size_t rank) {
    if (rank >= bound_) return false;
    if (rank < ranks_.size()) return true;
    if (is_subset_) return false;
    ranks_ = ranking_->first(rank + 1);
    return rank < ranks_.size();
}

double Candidates::weight(RankKey key) const {
    return exp_nonpositive(clamp_exponent((double{rank_logit(key)} - double{best_}) * rate_));
}

double Candidates::weight_of_row() {
    return sum_weight(x_, vocab_, best_, rate_);
}

void Candidates::keep_first(size_t count) {
    bound_ = count;
    double sum = 0;
    size_t rank = 0;
    for (; has(rank); ++rank) sum += weight(ranks_[rank]);
    bound_ = rank;
    total_ = sum;
}

// Distances from the mean for every candidate, in any order; returns how many.
size_t Candidates::fill_surprises(double mean_exponent) {
    size_t n = 0;
    const auto add = [&](RankKey key) {
        const double exponent = (double{rank_logit(key)} - double{best_}) * rate_;
        surprises_[n++] = {std::fabs(mean_exponent - exponent), key};
    };
    if (bound_ < vocab_) {
        for (size_t rank = 0; rank < bound_; ++rank) add(ranks_[rank]);
    } else {
        for (uint32_t i = 0; i < vocab_; ++i)
            if (x_[i] > -std::numeric_limits<float>::infinity()) add(rank_key(x_[i], i));
    }
    return n;
}

// With p = w / Z and log p = e - log Z (e the exponent), the entropy is log Z - E[e], so the
// distance |log p + entropy| is |e - E[e]|.
void Candidates::keep_typical(double share) {
    WeightSums sums;
    if (bound_ < vocab_) {
        for (size_t rank = 0; rank < bound_; ++rank) {
            const double exponent =
                clamp_exponent((double{rank_logit(ranks_[rank])} - double{best_}) * rate_);
            const double w = exp_nonpositive(exponent);
            sums.weight += w;
            sums.weight_exponent += w * exponent;
        }
    } else {
        sums = sum_weights(x_, vocab_, best_, rate_);
    }
    const size_t n = fill_surprises(sums.weight_exponent / sums.weight);
    const auto begin = surprises_.begin();
    const auto at = [&](size_t i) { return begin + static_cast<std::ptrdiff_t>(i); };

    double sum = 0;
    size_t kept = 0;
    bool is_reached = false;
    for (size_t sorted = 0, chunk = 64; !is_reached && sorted < n; chunk *= 8) {
        const size_t end = std::min(n, sorted + chunk);
        std::nth_element(at(sorted), at(end - 1), at(n));
        std::sort(at(sorted), at(end));
        for (sorted = end; !is_reached && kept < sorted; ++kept) {
            sum += weight(surprises_[kept].key);
            is_reached = sum >= share * sums.weight;
        }
    }
    for (size_t i = 0; i < kept; ++i) typical_[i] = surprises_[i].key;
    std::sort(typical_.begin(), typical_.begin() + static_cast<std::ptrdiff_t>(kept));
    ranks_ = {typical_.data(), kept};
    bound_ = kept;
    is_subset_ = true;
    total_ = sum;
}

void Candidates::keep_top(double share) {
    if (total_ < 0) total_ = weight_of_row();
    const double wanted = share * total_;
    double sum = 0;
    size_t rank = 0;
    while (has(rank)) {
        sum += weight(ranks_[rank++]);
        if (sum >= wanted) break;
    }
    bound_ = rank;
    total_ = sum;
}

void Candidates::keep_likely(double ratio) {
    double sum = 0;
    double least = 0;
    size_t rank = 0;
    for (; has(rank); ++rank) {
        const double w = weight(ranks_[rank]);
        if (rank == 0) least = ratio * w;
        if (w < least) break;
        sum += w;
    }
    bound_ = rank;
    total_ = sum;
}

int32_t Candidates::draw(const float* x, Ranking& ranking, const SamplingParams& params, double u) {
    x_ = x;
    ranking_ = &ranking;
    best_ = ranking.best_logit();
    rate_ = 1.0 / params.temperature;
    bound_ = vocab_;
    total_ = kUnknown;
    is_subset_ = false;
    ranks_ = {};

    if (params.top_k > 0 && params.top_k < vocab_) keep_first(params.top_k);
    if (params.typical_p < 1.0) keep_typical(params.typical_p);
    if (params.top_p < 1.0) keep_top(params.top_p);
    if (params.min_p > 0.0) keep_likely(params.min_p);
    if (total_ < 0) total_ = weight_of_row();

    const double wanted = u * total_;
    double sum = 0;
    size_t rank = 0;
    for (; has(rank); ++rank) {
        sum += weight(ranks_[rank]);
        if (sum > wanted) return rank_token(ranks_[rank]);
    }
    // Rounding left the running sum short of the total: the last candidate.
    return rank_token(ranks_[rank - 1]);
}

uint64_t Candidates::workspace_bytes() const {
    return surprises_.size() * sizeof(Surprise) + typical_.size() * sizeof(RankKey);
}

}  // namespace strata
