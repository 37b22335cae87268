#include "engine/loop/drafting.h"

#include <algorithm>

#include "engine/base/assert.h"
#include "engine/decode/exponential.h"
#include "engine/plan/step_plan.h"

namespace strata {

Drafting::Drafting(DraftSteps& steps,
                   uint32_t vocab,
                   const ModePlan& plan,
                   const uint32_t* page_tables,
                   uint32_t page_table_stride,
                   Clock clock)
    : steps_(steps),
      plan_(plan),
      width_(steps.width()),
      page_tables_(page_tables),
      stride_(page_table_stride),
      clock_(clock),
      ranking_(vocab),
      vocab_(vocab),
      depth_(plan.verify_rows(), draft_sequences_of(plan), plan.spec),
      waiting_(waiting_hidden_bytes(plan, width_), "hidden states"),
      page_hidden_(page_hidden_bytes(plan, width_), "hidden states of pages"),
      chain_hidden_(size_t{draft_sequences_of(plan)} * width_) {
    chains_.reserve(draft_sequences_of(plan));
    for (auto* rows : {&positions_, &sequences_}) rows->reserve(steps.rows_max());
    tokens_.reserve(steps.rows_max());
    for (auto* rows : {&gather_, &gather_chains_}) rows->reserve(steps.gather_max());
}

float* Drafting::waiting(const Sequence& sequence, uint32_t position_plus_one) {
    const uint32_t index = position_plus_one - sequence.draft.rows;
    STRATA_ASSERT(index < kPageTokens, "hidden states wait for less than a page");
    return reinterpret_cast<float*>(waiting_.data()) +
           (size_t{sequence.slot} * kPageTokens + index) * width_;
}

float* Drafting::page_hidden(const Sequence& sequence, uint32_t position) {
    const size_t entry = size_t{sequence.slot} * stride_ + position / kPageTokens;
    return reinterpret_cast<float*>(page_hidden_.data()) + size_t{page_tables_[entry]} * width_;
}

// The sequence's pages came from somewhere else up to `position`, the beginning of a page.
void Drafting::restart(Sequence& sequence, uint32_t position) {
    STRATA_ASSERT(position % kPageTokens == 0, "known positions come in whole pages");
    sequence.draft.rows = position;
    sequence.draft.next = position;
    float* const to = waiting(sequence, position);
    if (position == 0) {
        std::fill_n(to, width_, 0.0f);
    } else {
        std::copy_n(page_hidden(sequence, position - 1), width_, to);
    }
}

void Drafting::absorb(std::span<const Advance> advances) {
    for (const Advance& advance : advances) {
        absorb(advance);
        // Where sequences do not share draft steps, they do not catch up together either: that mode
        // may be out because it crashes.
        if (!plan_.batch_mtp) run_rows();
    }
    run_rows();
}

void Drafting::absorb(const Advance& advance) {
    Sequence& sequence = *advance.sequence;
    DraftState& state = sequence.draft;
    const uint32_t after = sequence.computed;
    const uint32_t before = after - advance.rows;
    if (before == 0 || state.next != before) restart(sequence, before);
    if (sequence.step_drafts > 0) {
        depth_.verified(state, sequence.step_drafts, sequence.step_accepted);
    }
    for (uint32_t end = before / kPageTokens * kPageTokens + kPageTokens; end <= after;
         end += kPageTokens) {
        const uint32_t row = advance.first_row + (end - 1 - before);
        std::copy_n(steps_.model_hidden(row), width_, page_hidden(sequence, end - 1));
    }
    if (after / kPageTokens * kPageTokens > state.rows) return flush(advance, before);
    for (uint32_t position = before; position < after; ++position) {
        std::copy_n(steps_.model_hidden(advance.first_row + position - before),
                    width_,
                    waiting(sequence, position + 1));
    }
    state.next = after;
}

// Computes all rows of the draft layer up to the last position that the model has computed.
void Drafting::flush(const Advance& advance, uint32_t before) {
    Sequence& sequence = *advance.sequence;
    DraftState& state = sequence.draft;
    const uint32_t after = sequence.computed;
    for (uint32_t position = std::max(state.rows, advance.known); position < after; ++position) {
        const float* hidden = position > before
                                  ? steps_.model_hidden(advance.first_row + position - 1 - before)
                                  : waiting(sequence, position);
        add_row(sequence, position, sequence.request.tokens[position], hidden);
    }
    state.rows = after;
    state.next = after;
    std::copy_n(steps_.model_hidden(advance.first_row + advance.rows - 1),
                width_,
                waiting(sequence, after));
}

void Drafting::add_row(const Sequence& sequence,
                       uint32_t position,
                       int32_t token,
                       const float* hidden) {
    if (tokens_.size() == steps_.rows_max()) run_rows();
    std::copy_n(hidden, width_, steps_.input(static_cast<uint32_t>(tokens_.size())));
    tokens_.push_back(token);
    positions_.push_back(position);
    sequences_.push_back(sequence.slot);
}

void Drafting::run_rows() {
    if (tokens_.empty()) return;
    RowView rows;
    rows.rows = static_cast<uint32_t>(tokens_.size());
    rows.tokens = tokens_.data();
    rows.positions = positions_.data();
    rows.sequences = sequences_.data();
    rows.page_tables = page_tables_;
    rows.page_table_stride = stride_;
    rows.gather = gather_.data();
    rows.gather_rows = static_cast<uint32_t>(gather_.size());
    steps_.step(rows);
    take_guesses();
    tokens_.clear();
    positions_.clear();
    sequences_.clear();
    gather_.clear();
    gather_chains_.clear();
}

// The best token of each gathered row is the next draft of its chain, where it is likely enough; a
// row that is not finite ends its chain.
void Drafting::take_guesses() {
    for (uint32_t i = 0; i < gather_.size(); ++i) {
        Chain& chain = chains_[gather_chains_[i]];
        const float* logits = steps_.logits(i);
        bool is_good = ranking_.begin(logits);
        if (is_good && plan_.spec_min_p > 0) {
            const double total = sum_weight(logits, vocab_, ranking_.best_logit(), 1.0);
            is_good = 1.0 >= plan_.spec_min_p * total;
        }
        if (!is_good) {
            chain.depth = 0;
            continue;
        }
        Sequence& sequence = *chain.sequence;
        sequence.drafts[sequence.draft_count++] = ranking_.best_token();
        std::copy_n(
            steps_.hidden(i), width_, chain_hidden_.data() + size_t{gather_chains_[i]} * width_);
    }
}

void Drafting::propose(std::span<const DraftCandidate> candidates, uint32_t running) {
    const auto others = static_cast<uint32_t>(running - candidates.size());
    draft(candidates, depth_.choose(candidates, others));
}

void Drafting::draft(std::span<const DraftCandidate> candidates, std::span<const uint32_t> depths) {
    chains_.clear();
    uint32_t deepest = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
        if (depths[i] == 0) continue;
        chains_.push_back({candidates[i].sequence, depths[i]});
        deepest = std::max(deepest, depths[i]);
    }
    for (uint32_t place = 0; place < deepest; ++place) {
        const uint64_t begin_us = clock_();
        uint32_t drafting = 0;
        for (uint32_t c = 0; c < chains_.size(); ++c) {
            const Chain& chain = chains_[c];
            if (chain.depth <= place) continue;
            ++drafting;
            Sequence& sequence = *chain.sequence;
            DraftState& state = sequence.draft;
            const uint32_t last = sequence.computed;  // position of the last token
            if (place == 0) {
                if (last == 0 || state.next != last) restart(sequence, last);
                for (uint32_t position = state.rows; position <= last; ++position) {
                    const int32_t token = sequence.request.tokens[position];
                    add_row(sequence, position, token, waiting(sequence, position));
                }
                state.rows = last + 1;
            } else {
                const float* hidden = chain_hidden_.data() + size_t{c} * width_;
                add_row(sequence, last + place, sequence.drafts[place - 1], hidden);
            }
            gather_.push_back(static_cast<uint32_t>(tokens_.size()) - 1);
            gather_chains_.push_back(c);
        }
        if (drafting == 0) return;
        run_rows();
        depth_.draft_step_took(place == 0, drafting, static_cast<double>(clock_() - begin_us));
    }
}

}  // namespace strata
