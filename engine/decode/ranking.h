// Order of the tokens of one row of logits: descending logit, ties by ascending id, found only as
// far as somebody looks. A row is first folded into column maxima in one vectorised pass; they
// give the best token at once and a bound that keeps all but a few tokens out of the sort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace strata {

// A token and its logit as one integer: ascending keys are ascending ranks.
using RankKey = uint64_t;

RankKey rank_key(float logit, uint32_t token);
float rank_logit(RankKey key);  // -0.0 comes back as +0.0
int32_t rank_token(RankKey key);

class Ranking {
  public:
    explicit Ranking(uint32_t vocab);

    // const float* x;  // [vocab], must stay unchanged while this row is in use
    // Begins a row; false when a logit is NaN or infinite (then the order is valid only if the
    // infinite ones are -inf: those tokens have no rank).
    bool begin(const float* x);

    // Logit and id of rank 0. With no ranked token the logit is -inf.
    float best_logit() const { return best_; }
    int32_t best_token() const;

    // The first ranks, ascending: at least `count` of them where there are as many, perhaps more.
    // Invalidates former results.
    std::span<const RankKey> first(size_t count);

  private:
    void rank_above(size_t count);
    void rank_all(float least);

    uint32_t vocab_;
    size_t columns_;  // power of two; column c holds x[c], x[c + columns_], ...
    const float* x_ = nullptr;
    float best_ = 0;
    bool is_complete_ = false;
    size_t ranked_ = 0;
    std::vector<float> column_max_;  // [columns_]
    std::vector<float> fold_;        // [columns_]
    std::vector<RankKey> keys_;      // [vocab]
    std::vector<RankKey> spare_;     // [vocab], the other side of the radix sort
};

}  // namespace strata
