// Each step only lowers `bound_` (or replaces the ranks, typical_p) and tracks the total weight;
// ranks are asked for one by one, so a peaked row is never sorted beyond its few likely tokens.
#include "engine/decode/candidates.h"

#include <algorithm>
#include <cmath>

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

double Candidates::exponent(RankKey key) const {
    return (double{rank_logit(key)} - double{best_}) * rate_;
}

double Candidates::weight(RankKey key) const {
    return exp_nonpositive(clamp_exponent(exponent(key)));
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

// With p = w / Z and log p = e - log Z (e the exponent), the entropy is log Z - E[e], so the
// distance |log p + entropy| is |E[e] - e|.
void Candidates::keep_typical(double share) {
    has(bound_ - 1);  // ranks all candidates at once
    double sum = 0;
    double sum_exponent = 0;
    size_t count = 0;
    for (; has(count); ++count) {
        const RankKey key = ranks_[count];
        const double w = weight(key);
        sum += w;
        sum_exponent += w * clamp_exponent(exponent(key));
        surprises_[count] = {0, w, key};
    }
    const double mean = sum_exponent / sum;
    const auto distance = [&](RankKey key) { return std::fabs(mean - exponent(key)); };
    for (size_t i = 0; i < count; ++i) surprises_[i].distance = distance(surprises_[i].key);

    const Surprise last = last_typical(count, share * sum);
    size_t kept = 0;
    total_ = 0;
    for (size_t rank = 0; rank < count; ++rank) {
        const Surprise token{distance(ranks_[rank]), 0, ranks_[rank]};
        if (last < token) continue;
        typical_[kept++] = token.key;
        total_ += weight(token.key);
    }
    ranks_ = {typical_.data(), kept};
    bound_ = kept;
    is_subset_ = true;
}

// The element of surprises_[0, count) at which the sum of weights, in ascending order, reaches
// `wanted` (the last one where rounding leaves it short). Halves the range that holds it instead
// of sorting, so a flat row costs no more than a peaked one.
Candidates::Surprise Candidates::last_typical(size_t count, double wanted) {
    constexpr size_t kSorted = 64;
    const auto at = [&](size_t i) { return surprises_.begin() + static_cast<std::ptrdiff_t>(i); };
    double below = 0;  // weight of [0, low)
    size_t low = 0;
    size_t high = count;
    while (high - low > kSorted) {
        const size_t middle = low + (high - low) / 2;
        std::nth_element(at(low), at(middle), at(high));
        double half = 0;
        for (size_t i = low; i < middle; ++i) half += surprises_[i].weight;
        if (below + half >= wanted) {
            high = middle;
        } else {
            below += half;
            low = middle;
        }
    }
    std::sort(at(low), at(high));
    for (size_t i = low; i < high; ++i) {
        below += surprises_[i].weight;
        if (below >= wanted) return surprises_[i];
    }
    return surprises_[high - 1];
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

}  // namespace strata
