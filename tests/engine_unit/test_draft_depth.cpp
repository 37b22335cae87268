// The depth of drafts follows what steps are measured to take and how often drafts are right.
#include <deque>

#include "engine/loop/draft_depth.h"
#include "tests/engine_unit/check.h"

namespace strata::testing {

namespace {

constexpr uint32_t kSpec = 4;

struct Sequences {
    explicit Sequences(uint32_t count) {
        for (uint32_t i = 0; i < count; ++i) {
            owned.emplace_back(Request{i, i, 0, 1, 100, 0, {1}, SamplingState({}, 23, {}, 8)});
            candidates.push_back({&owned.back(), kSpec});
        }
    }
    std::deque<Sequence> owned;
    std::vector<DraftCandidate> candidates;
};

// Steps of which each row costs `row_us` beside `step_us`, and draft steps of `draft_us`.
DraftDepth measured(uint32_t sequences, double step_us, double row_us, double draft_us) {
    DraftDepth depth(sequences * (kSpec + 1), sequences, kSpec);
    for (uint32_t rows = 1; rows <= sequences * (kSpec + 1); ++rows) {
        depth.model_step_took(rows, step_us + row_us * rows);
    }
    for (uint32_t count = 1; count <= sequences; ++count) {
        depth.draft_step_took(true, count, draft_us);
        depth.draft_step_took(false, count, draft_us);
    }
    return depth;
}

void verify(DraftDepth& depth, Sequence& sequence, uint32_t accepted, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) depth.verified(sequence.draft, kSpec, accepted);
}

}  // namespace

TEST(costs_of_sizes_that_were_not_measured_are_guessed_from_those_that_were) {
    StepCosts costs(8);
    CHECK(costs.at(3) == 0);
    costs.add(2, 100);
    CHECK(costs.at(2) == 100);
    CHECK(costs.at(5) > 100 && costs.at(5) < 200, costs.at(5));
    CHECK(costs.at(1) < 100 && costs.at(1) > 50, costs.at(1));
    for (int i = 0; i < 100; ++i) costs.add(2, 200);
    CHECK(costs.at(2) > 190 && costs.at(2) <= 200, costs.at(2));
    costs.add(2, 1e6);  // an interrupted step
    CHECK(costs.at(2) < 250, costs.at(2));
}

TEST(cheap_drafts_that_are_right_go_deep_and_dear_ones_do_not_begin) {
    Sequences one(1);
    DraftDepth cheap = measured(1, 1000, 20, 50);
    verify(cheap, one.owned[0], kSpec, 50);
    CHECK(cheap.choose(one.candidates, 0)[0] == kSpec);
    Sequences other(1);
    DraftDepth dear = measured(1, 200, 1700, 800);
    verify(dear, other.owned[0], kSpec, 50);
    CHECK(dear.choose(other.candidates, 0)[0] == 0);
}

TEST(a_limit_is_kept) {
    Sequences one(1);
    DraftDepth depth = measured(1, 1000, 20, 50);
    verify(depth, one.owned[0], kSpec, 50);
    one.candidates[0].limit = 2;
    CHECK(depth.choose(one.candidates, 0)[0] == 2);
}

TEST(each_sequence_has_the_depth_that_its_own_drafts_are_worth) {
    Sequences two(2);
    DraftDepth depth = measured(2, 1000, 150, 30);
    for (uint32_t i = 0; i < 60; ++i) {
        verify(depth, two.owned[0], kSpec, 1);
        verify(depth, two.owned[1], 0, 1);
    }
    const std::span<const uint32_t> depths = depth.choose(two.candidates, 0);
    CHECK(depths[0] >= 3, depths[0]);
    CHECK(depths[1] == 0, depths[1]);
}

TEST(a_sequence_that_stopped_tries_again_and_later_each_time) {
    Sequences one(1);
    DraftDepth depth = measured(1, 1000, 300, 300);
    verify(depth, one.owned[0], 0, 60);
    std::vector<uint32_t> tried;
    for (uint32_t step = 0; step < 2000; ++step) {
        if (depth.choose(one.candidates, 0)[0] == 0) continue;
        tried.push_back(step);
        depth.verified(one.owned[0].draft, 1, 0);
    }
    // 4 steps behind 64, 128, 256, 512 and 1024 without: never more than one step in twenty.
    CHECK(tried.size() >= 12 && tried.size() <= 2000 / 20, tried.size());
    CHECK(tried.front() >= DraftDepth::kRetryFirst, tried.front());
    // What was wrong is right now: drafts are back.
    verify(depth, one.owned[0], kSpec, 200);
    DraftDepth cheap = measured(1, 1000, 20, 50);
    verify(cheap, one.owned[0], kSpec, 200);
    CHECK(cheap.choose(one.candidates, 0)[0] > 0);
}

}  // namespace strata::testing

CHECK_MAIN
