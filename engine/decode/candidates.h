// The tokens a draw may choose, narrowed step by step: top_k, typical_p, top_p, min_p, then the
// draw (order and definitions in sampler.h). Weights are relative to the best logit of the row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/ranking.h"
#include "engine/decode/sampling_params.h"

namespace strata {

class Candidates {
  public:
    explicit Candidates(uint32_t vocab);

    // const float* x;  // [vocab], the row `ranking` has begun; at least one logit above -inf
    // Token chosen with the uniform number u in [0, 1).
    int32_t draw(const float* x, Ranking& ranking, const SamplingParams& params, double u);

  private:
    struct Surprise {
        double distance;  // |log p + entropy|
        double weight;
        RankKey key;
        bool operator<(const Surprise& other) const {
            return distance != other.distance ? distance < other.distance : key < other.key;
        }
    };

    bool has(size_t rank);
    double exponent(RankKey key) const;
    double weight(RankKey key) const;
    double weight_of_row();
    void keep_first(size_t count);
    void keep_typical(double share);
    void keep_top(double share);
    void keep_likely(double ratio);
    Surprise last_typical(size_t count, double wanted);

    const float* x_ = nullptr;
    Ranking* ranking_ = nullptr;
    uint32_t vocab_;
    float best_ = 0;
    double rate_ = 1;                  // 1 / temperature
    size_t bound_ = 0;                 // no candidate has this rank or a later one
    double total_ = 0;                 // sum of the candidates' weights where known, else negative
    bool is_subset_ = false;           // ranks_ was replaced by the typical tokens
    std::span<const RankKey> ranks_;   // what has been ranked, ascending
    std::vector<Surprise> surprises_;  // [vocab]
    std::vector<RankKey> typical_;     // [vocab]
};

}  // namespace strata
