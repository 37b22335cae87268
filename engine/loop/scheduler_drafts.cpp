// Drafts in the scheduler: who may have some, which of them a step has accepted.
#include <algorithm>

#include "engine/base/assert.h"
#include "engine/loop/scheduler.h"
#include "engine/plan/mode.h"

namespace strata {

std::span<const DraftCandidate> Scheduler::plan_drafts(uint64_t now_us) {
    STRATA_ASSERT(step_.rows.rows == 0, "the last step has no outcome yet");
    candidates_.clear();
    admit(now_us);
    if (config_.spec == 0 || (running_.size() > 1 && !config_.batch_mtp)) return candidates_;
    for (const auto& sequence : running_) {
        const uint32_t limit = draft_limit(*sequence);
        if (limit == 0) continue;
        const uint32_t rows = reserve_spare_pages(*sequence, 1 + limit);
        if (rows > 1) candidates_.push_back({sequence.get(), std::min(limit, rows - 1)});
    }
    return candidates_;
}

// Drafts whose verification yields no more tokens than the request may get: each one of them, and
// the token behind the last.
uint32_t Scheduler::draft_limit(const Sequence& sequence) const {
    const Request& request = sequence.request;
    if (!request.may_draft || sequence.remaining() != 1 || sequence.is_held() ||
        !sequence.wants_output())
        return 0;
    const uint32_t output = request.output_tokens();
    const uint32_t tokens = std::min({request.params().max_tokens - output,
                                      request.credit - output,
                                      context_ - sequence.length()});
    return tokens == 0 ? 0 : std::min(config_.spec, tokens - 1);
}

// Takes pages for up to `rows` more rows while each running sequence could still take one; answers
// for how many rows there are pages.
uint32_t Scheduler::reserve_spare_pages(Sequence& sequence, uint32_t rows) {
    const uint32_t wanted = (sequence.computed + rows + kPageTokens - 1) / kPageTokens;
    while (sequence.pages < wanted && cache_.available_count() > running_.size()) {
        const auto page = cache_.take();
        STRATA_ASSERT(page.has_value(), "an available page can be taken");
        table(sequence, sequence.pages++) = *page;
    }
    return std::min(rows, sequence.pages * kPageTokens - sequence.computed);
}

std::span<const Advance> Scheduler::advance(std::span<const Outcome> outcomes) {
    STRATA_ASSERT(outcomes.size() == gathers_.size(), "one outcome per gather");
    copies_.clear();  // made with the step
    for (size_t i = 0; i < outcomes.size(); ++i) {
        if (outcomes[i].is_accepted) ++gathers_[i].sequence->step_accepted;
    }
    for (const auto& owned : running_) {
        Sequence& sequence = *owned;
        if (sequence.step_rows == 0) continue;
        const uint32_t rejected = sequence.step_drafts - sequence.step_accepted;
        std::vector<int32_t>& tokens = sequence.request.tokens;
        const auto first = sequence.drafts.begin();
        tokens.insert(tokens.end(), first, first + sequence.step_accepted);
        sequence.computed += sequence.step_rows - rejected;
        const uint32_t known = publish_pages(sequence);
        keep_state(sequence);
        if (sequence.step_drafts > 0) count_drafts(sequence);
        advances_.push_back(
            {&sequence, sequence.step_row, sequence.step_rows - rejected, rejected, known});
    }
    has_advanced_ = true;
    return advances_;
}

void Scheduler::count_drafts(Sequence& sequence) {
    sequence.drafted_tokens += sequence.step_drafts;
    sequence.accepted_tokens += sequence.step_accepted;
    ++totals_.draft_steps;
    totals_.drafted_tokens += sequence.step_drafts;
    totals_.accepted_tokens += sequence.step_accepted;
    for (uint32_t place = 0; place < sequence.step_accepted; ++place) ++totals_.accepted_at[place];
}

}  // namespace strata
