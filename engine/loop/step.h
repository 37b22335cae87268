// A planned step: the rows for Runtime::step and what each gathered row's logits are for; and what
// came of them.
#pragma once

#include <cstdint>
#include <span>

#include "engine/backend/kernel.h"
#include "engine/loop/sequence.h"

namespace strata {

struct TokenLogprob;

enum class GatherUse : uint8_t {
    Sample,  // choose the sequence's next token
    Score,   // log-probability of a known prompt token
};

struct Gather {
    Sequence* sequence = nullptr;
    GatherUse use = GatherUse::Sample;
    uint32_t index = 0;  // Sample: output index of the token to choose; Score: prompt index scored
};

// Valid until the next Scheduler::plan.
struct Step {
    RowView rows;
    std::span<const Gather> gathers;  // one per gather row, in their order
    std::span<const uint64_t> rids;   // requests that have rows in the step
    bool has_prompt = false;          // some rows are of prompts not yet at their end
};

// One per gather.
struct Outcome {
    bool is_finite = true;  // false: the logits held a NaN or nothing to choose from
    int32_t token = 0;      // Sample: the chosen token
    const TokenLogprob* logprob = nullptr;  // where asked for
    bool is_accepted = false;  // Sample: the token is the sequence's draft, so the next row counts
    bool is_void = false;      // Sample: the row's token was a draft that is not accepted
};

// How far a step took a sequence that has rows in it.
struct Advance {
    Sequence* sequence = nullptr;
    uint32_t first_row = 0;
    uint32_t rows = 0;      // that last: all but those of drafts that are not accepted
    uint32_t rejected = 0;  // the rows behind them
    uint32_t known = 0;     // positions whose pages are now another sequence's, with all they hold
};

// A decoding sequence that may have drafts in the next step, and how many; its pages hold them.
struct DraftCandidate {
    Sequence* sequence = nullptr;
    uint32_t limit = 0;
};

}  // namespace strata
