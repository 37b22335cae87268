// How many drafts each sequence gets in the next step: as many as pay, by what steps are measured
// to take here and how often this sequence's drafts have been right. Arithmetic only, no clock.
//
// A step is worth the tokens that it is expected to yield; it costs the model's step over all rows
// and one draft step for each draft of the deepest sequence. The depths chosen have the most tokens
// for the time. Where none beats no drafts by kGainMin, nothing is drafted; a sequence that has
// stopped tries again after a while, later each time that it does not pay, because texts and
// machines change.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/loop/draft_state.h"
#include "engine/loop/step.h"

namespace strata {

// Time of a step by its size, a moving average of what was measured.
class StepCosts {
  public:
    explicit StepCosts(uint32_t size_max) : costs_(size_max + 1) {}

    void add(uint32_t size, double us);
    // Of a size that was not measured: from the next smaller one that was, else the next larger;
    // 0 where nothing was measured.
    double at(uint32_t size) const;

  private:
    struct Cost {
        double us = 0;
        uint32_t count = 0;
    };
    std::vector<Cost> costs_;
};

class DraftDepth {
  public:
    static constexpr double kGainMin = 1.03;  // over a step without drafts
    static constexpr uint32_t kRetryFirst = 64;
    static constexpr uint32_t kRetryMax = 1024;
    static constexpr uint32_t kTrialSteps = 4;

    // `rows_max` of a step that decodes; `sequences` that may draft at once; `spec` drafts each.
    DraftDepth(uint32_t rows_max, uint32_t sequences, uint32_t spec);

    // What was measured, microseconds. `first`: the draft step that also catches up.
    void model_step_took(uint32_t rows, double us) { model_.add(rows, us); }
    void draft_step_took(bool first, uint32_t sequences, double us) {
        (first ? first_draft_ : next_draft_).add(sequences, us);
    }

    // `accepted` of the sequence's `drafts` were right; the one behind these was not.
    void verified(DraftState& state, uint32_t drafts, uint32_t accepted);

    // The depth of each candidate, 0 to its limit. `others`: rows of sequences that decode in the
    // same step without drafts. Valid until the next call.
    std::span<const uint32_t> choose(std::span<const DraftCandidate> candidates, uint32_t others);

  private:
    double expected_tokens(const DraftState& state, uint32_t depth) const;
    double rate(std::span<const DraftCandidate> candidates, uint32_t others) const;
    void choose_best(std::span<const DraftCandidate> candidates, uint32_t others);
    void try_again(DraftState& state, uint32_t& depth) const;

    uint32_t spec_;
    StepCosts model_;        // by rows
    StepCosts first_draft_;  // by sequences
    StepCosts next_draft_;
    std::array<Acceptance, kSpecMax> overall_{};
    std::vector<uint32_t> depths_;
    std::vector<uint32_t> best_;
};

}  // namespace strata
