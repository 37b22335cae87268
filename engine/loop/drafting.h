// Makes drafts: keeps the draft layer's cache level with the model's and lets the drafter guess
// what follows. What it guesses is verified by the next step (step_runner.h), so nothing in here
// can change a token that a request gets.
//
// The draft layer's row of position p takes token x_p and the model's hidden state of position
// p - 1, so it lags one step behind: absorb() takes in the hidden states of the rows that lasted.
// They wait (kPageTokens of a sequence at most) until the sequence drafts or a page is full. So the
// draft layer's part of a page is complete when the page is in the prefix cache, and what a resumed
// or preempted sequence needs is in its pages. The hidden state of each page's last position is
// kept beside the page: a sequence that goes on behind a page it found there starts from it,
// exactly as the one that computed the page.
//
// A chain of drafts begins with the last token and the model's hidden state before it; each further
// one takes the draft before and the drafter's own hidden state. Rows of drafts are not counted as
// cached and are computed again from the model's hidden states once they are accepted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/backend/page_buffer.h"
#include "engine/backend/runtime.h"
#include "engine/decode/ranking.h"
#include "engine/loop/draft_depth.h"
#include "engine/loop/step.h"
#include "engine/plan/mode.h"

namespace strata {

class Drafting {
  public:
    using Clock = uint64_t (*)();  // microseconds, monotonic

    // `steps` outlives it. `page_tables`: of the scheduler, [plan.batch, stride].
    Drafting(DraftSteps& steps,
             uint32_t vocab,
             const ModePlan& plan,
             const uint32_t* page_tables,
             uint32_t page_table_stride,
             Clock clock);

    // Behind each step of the model, before the next. Throws Error for faults of the device.
    void absorb(std::span<const Advance> advances);

    // Writes drafts into the candidates, as many as pay, at most their limits. `running`: sequences
    // that run. Throws Error for faults of the device.
    void propose(std::span<const DraftCandidate> candidates, uint32_t running);

    // The same with depths that are given, one a candidate.
    void draft(std::span<const DraftCandidate> candidates, std::span<const uint32_t> depths);

    // A step of `rows` rows that all decode took `us`.
    void step_took(uint32_t rows, uint64_t us) {
        depth_.model_step_took(rows, static_cast<double>(us));
    }

  private:
    struct Chain {
        Sequence* sequence = nullptr;
        uint32_t depth = 0;
    };

    // Hidden state of position `position` (-1: the zeros before the first) that waits in `slot`.
    float* waiting(const Sequence& sequence, uint32_t position_plus_one);
    float* page_hidden(const Sequence& sequence, uint32_t position);
    void restart(Sequence& sequence, uint32_t position);
    void absorb(const Advance& advance);
    void flush(const Advance& advance, uint32_t before);
    void add_row(const Sequence& sequence, uint32_t position, int32_t token, const float* hidden);
    void run_rows();
    void take_guesses();

    DraftSteps& steps_;
    ModePlan plan_;
    uint32_t width_;
    const uint32_t* page_tables_;
    uint32_t stride_;
    Clock clock_;
    Ranking ranking_;
    uint32_t vocab_;
    DraftDepth depth_;
    PageBuffer waiting_;               // [batch, kPageTokens, width]
    PageBuffer page_hidden_;           // [pages, width]
    std::vector<float> chain_hidden_;  // [sequences that draft, width]
    std::vector<Chain> chains_;

    // Rows of the draft step that is put together.
    std::vector<int32_t> tokens_;
    std::vector<uint32_t> positions_;
    std::vector<uint32_t> sequences_;
    std::vector<uint32_t> gather_;
    std::vector<uint32_t> gather_chains_;  // index into chains_ of each gathered row
};

}  // namespace strata
