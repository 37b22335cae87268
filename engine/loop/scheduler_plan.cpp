// Which rows the next step computes, and the pages for them.
#include <algorithm>

#include "engine/base/assert.h"
#include "engine/loop/scheduler.h"
#include "engine/plan/mode.h"

namespace strata {

namespace {

uint32_t pages_for(uint32_t tokens) {
    return (tokens + kPageTokens - 1) / kPageTokens;
}

}  // namespace

const Step& Scheduler::plan(uint64_t now_us) {
    STRATA_ASSERT(step_.rows.rows == 0, "the last step has no outcome yet");
    row_tokens_.clear();
    row_positions_.clear();
    row_sequences_.clear();
    gather_rows_.clear();
    gathers_.clear();
    rids_.clear();
    step_ = {};
    admit(now_us);
    uint32_t prefill_left = config_.prefill;
    // Every sequence keeps one gather row for its own sampling and one for each draft; scoring
    // prompts shares the rest.
    uint32_t gather_spare = config_.gather_max;
    for (const auto& sequence : running_) gather_spare -= 1 + sequence->draft_count;
    // Oldest first. Preemption takes from the back, so never a sequence that has rows already;
    // the loop's bound shrinks with it.
    for (size_t i = 0; i < running_.size(); ++i) {
        Sequence& sequence = *running_[i];
        const size_t gathers_before = gathers_.size();
        const uint32_t rows = plan_rows(sequence, prefill_left, gather_spare + 1);
        if (rows == 0) continue;  // waits, is held, or was itself preempted and is gone
        emit_rows(sequence, rows);
        rids_.push_back(sequence.request.rid);
        if (sequence.remaining() > 1) {  // otherwise its one decode row
            prefill_left -= rows;
            step_.has_prompt = true;
        }
        const uint32_t gathered = static_cast<uint32_t>(gathers_.size() - gathers_before);
        const uint32_t own = 1 + sequence.draft_count;
        if (gathered > own) gather_spare -= gathered - own;
    }
    step_.rows.rows = static_cast<uint32_t>(row_tokens_.size());
    step_.rows.tokens = row_tokens_.data();
    step_.rows.positions = row_positions_.data();
    step_.rows.sequences = row_sequences_.data();
    step_.rows.page_tables = page_tables_.data();
    step_.rows.page_table_stride = table_stride_;
    step_.rows.gather = gather_rows_.data();
    step_.rows.gather_rows = static_cast<uint32_t>(gather_rows_.size());
    step_.rows.copies = copies_.data();
    step_.rows.copy_count = static_cast<uint32_t>(copies_.size());
    step_.gathers = gathers_;
    step_.rids = rids_;
    return step_;
}

void Scheduler::admit(uint64_t now_us) {
    while (true) {
        // First come, first served among those that can go on; nobody else overtakes.
        const auto next = std::find_if(waiting_.begin(), waiting_.end(), [](const auto& waiting) {
            return !(waiting->is_parked && waiting->is_held());
        });
        if (next == waiting_.end()) return;
        if (free_slots_.empty() || !fits(**next)) {
            if (!park_held()) return;
            continue;
        }
        std::unique_ptr<Sequence> sequence = std::move(*next);
        waiting_.erase(next);
        waiting_tokens_ -= sequence->length();
        sequence->is_parked = false;
        sequence->slot = free_slots_.back();
        free_slots_.pop_back();
        if (sequence->admitted_us == 0) sequence->admitted_us = now_us;
        // Room for all tokens to come: steps do not allocate.
        Request& request = sequence->request;
        request.tokens.reserve(static_cast<size_t>(std::min<uint64_t>(
            uint64_t{request.prompt_tokens} + request.params().max_tokens, context_)));
        insert(running_, std::move(sequence));
    }
}

// Whether the pages for all known tokens are there, beside what the running sequences still need
// for theirs and one page for each to grow into.
bool Scheduler::fits(const Sequence& sequence) const {
    uint64_t needed = pages_for(sequence.length());
    uint64_t available = cache_.available_count();
    const uint32_t known = known_prefix(sequence).usable_pages;
    needed -= known;
    PrefixCache::Node parent = PrefixCache::kRoot;
    for (uint32_t page_index = 0; page_index < known; ++page_index) {
        const auto page = cache_.peek(parent, page_tokens(sequence, page_index));
        if (cache_.is_idle(*page)) --available;
        parent = cache_.node(*page);
    }
    for (const auto& running : running_) {
        const uint32_t wanted = pages_for(running->length());  // drafts may have taken one more
        needed += wanted + 1 - std::min(running->pages, wanted + 1);
    }
    return needed <= available;
}

// Rows the sequence gets in this step, with pages reserved for them. May preempt `sequence`
// itself; then the answer is 0 and the sequence is back in the queue.
uint32_t Scheduler::plan_rows(Sequence& sequence, uint32_t prefill_left, uint32_t gather_left) {
    if (has_states()) {
        if (is_checkpoint_under_way(sequence)) return 0;
        adopt_checkpoint(sequence);
    } else {
        adopt_cached_pages(sequence);
        if (is_page_under_way(sequence)) return 0;
    }
    uint32_t rows = sequence.rows_ready();
    if (has_states()) rows = std::min(rows, next_checkpoint(sequence) - sequence.computed);
    const bool is_last_row = sequence.remaining() == 1;
    if (!is_last_row) rows = std::min(rows, prefill_left);
    if (is_last_row && rows > 0) rows += sequence.draft_count;
    if (sequence.request.scores_prompt()) {
        // Only prompt rows whose score is not out yet gather; the replayed ones before them do not.
        const uint32_t replayed =
            sequence.scored > sequence.computed + 1 ? sequence.scored - 1 - sequence.computed : 0;
        rows = std::min(rows, replayed + gather_left);
    }
    return rows == 0 ? 0 : reserve_pages(sequence, rows);
}

// Takes pages for up to `rows` more rows; returns for how many there are pages. Less than asked is
// fine; for the first row younger sequences have to give way.
uint32_t Scheduler::reserve_pages(Sequence& sequence, uint32_t rows) {
    const uint32_t wanted = pages_for(sequence.computed + rows);
    while (sequence.pages < wanted) {
        const auto page = cache_.take();
        if (page) {
            table(sequence, sequence.pages++) = *page;
            continue;
        }
        const uint32_t covered = sequence.pages * kPageTokens - sequence.computed;
        if (covered > 0) return covered;
        if (!preempt_youngest(sequence)) return 0;
    }
    return rows;
}

void Scheduler::emit_rows(Sequence& sequence, uint32_t rows) {
    const Request& request = sequence.request;
    const uint32_t length = sequence.length();
    sequence.step_row = static_cast<uint32_t>(row_tokens_.size());
    sequence.step_rows = rows;
    sequence.step_drafts = rows - std::min(rows, sequence.remaining());
    for (uint32_t i = 0; i < rows; ++i) {
        const uint32_t position = sequence.computed + i;
        const uint32_t row = static_cast<uint32_t>(row_tokens_.size());
        row_tokens_.push_back(position < length ? request.tokens[position]
                                                : sequence.drafts[position - length]);
        row_positions_.push_back(position);
        row_sequences_.push_back(sequence.slot);
        if (position + 1 >= length) {
            if (!sequence.wants_output()) continue;
            const uint32_t index = position + 1 - request.prompt_tokens;
            gathers_.push_back({&sequence, GatherUse::Sample, index});
        } else if (request.scores_prompt() && position + 1 >= sequence.scored &&
                   position + 1 < request.prompt_tokens) {
            gathers_.push_back({&sequence, GatherUse::Score, position + 1});
        } else {
            continue;
        }
        gather_rows_.push_back(row);
    }
}

PrefixCache::Node Scheduler::parent_node(const Sequence& sequence, uint32_t page_index) const {
    return page_index == 0 ? PrefixCache::kRoot : cache_.node(table(sequence, page_index - 1));
}

std::span<const int32_t> Scheduler::page_tokens(const Sequence& sequence,
                                                uint32_t page_index) const {
    return std::span(sequence.request.tokens)
        .subspan(size_t{page_index} * kPageTokens, kPageTokens);
}

// Moves a sequence that stands at the start of a page over the pages that are known. At least its
// last token is left to compute: its logits are needed.
void Scheduler::adopt_cached_pages(Sequence& sequence) {
    if (!cache_.is_enabled() || sequence.request.scores_prompt()) return;
    while (sequence.computed % kPageTokens == 0 &&
           sequence.computed + kPageTokens < sequence.length()) {
        const uint32_t page_index = sequence.computed / kPageTokens;
        if (sequence.pages != page_index) return;  // has its own page there already
        const PrefixCache::Node parent = parent_node(sequence, page_index);
        if (parent == PrefixCache::kNoNode) return;
        const auto page = cache_.find(parent, page_tokens(sequence, page_index));
        if (!page) return;
        table(sequence, sequence.pages++) = *page;
        sequence.computed += kPageTokens;
        sequence.published = sequence.pages;
        if (!sequence.was_preempted) {
            const uint32_t cached = std::min(sequence.computed, sequence.request.prompt_tokens);
            totals_.cached_tokens += cached - sequence.cached_tokens;
            sequence.cached_tokens = cached;
        }
    }
}

// Whether another running sequence computes the very page this one needs next. Only one that is
// further on, or as far and older, counts: the order is strict, so no two wait for each other.
bool Scheduler::is_page_under_way(const Sequence& sequence) const {
    if (!cache_.is_enabled() || sequence.request.scores_prompt()) return false;
    const uint32_t end = sequence.computed + kPageTokens;
    if (sequence.computed % kPageTokens != 0 || end >= sequence.length()) return false;
    return std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
        if (other.get() == &sequence || other->length() < end) return false;
        if (other->computed >= end || other->computed < sequence.computed) return false;
        if (other->computed == sequence.computed && !other->is_before(sequence)) return false;
        if (other->is_held() && other->length() == end) return false;  // will not get to its end
        return std::equal(sequence.request.tokens.begin(),
                          sequence.request.tokens.begin() + end,
                          other->request.tokens.begin());
    });
}

// Takes the pages of the last sequence in the order of service and puts it back in the queue.
// False when that was `for_sequence` itself.
bool Scheduler::preempt_youngest(const Sequence& for_sequence) {
    STRATA_ASSERT(running_.size() > 1, "one sequence alone always fits the pool");
    const bool is_other = running_.back().get() != &for_sequence;
    requeue(running_.size() - 1);
    return is_other;
}

// A reader that does not read costs its own sequence only: when somebody waits, the youngest
// sequence out of credit, with all but its last row computed, gives its place and pages back.
// False when there is none.
bool Scheduler::park_held() {
    for (size_t i = running_.size(); i > 0; --i) {
        const Sequence& sequence = *running_[i - 1];
        if (!sequence.is_held() || sequence.rows_ready() > 0) continue;
        running_[i - 1]->is_parked = true;
        requeue(i - 1);
        return true;
    }
    return false;
}

// Takes the pages of a running sequence and puts it back in the queue; what it has computed is
// computed again, or found in the prefix cache, and nothing it delivered changes.
void Scheduler::requeue(size_t index) {
    std::unique_ptr<Sequence> sequence = std::move(running_[index]);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
    STRATA_ASSERT(sequence->step_rows == 0, "requeued in mid-step");
    release_pages(*sequence);
    sequence->computed = 0;
    sequence->published = 0;
    sequence->checkpoint_shared = 0;
    sequence->checkpoint_last = 0;
    sequence->draft_count = 0;
    sequence->draft.rows = 0;
    sequence->draft.next = 0;
    sequence->was_preempted = true;
    ++totals_.preemptions;
    waiting_tokens_ += sequence->length();
    insert(waiting_, std::move(sequence));
}

// Answers up to which position the pages are now ones that another sequence has computed; 0 = none.
uint32_t Scheduler::publish_pages(Sequence& sequence) {
    const uint32_t full = sequence.computed / kPageTokens;
    uint32_t known = 0;
    for (; sequence.published < full; ++sequence.published) {
        uint32_t& page = table(sequence, sequence.published);
        const uint32_t kept = cache_.insert(parent_node(sequence, sequence.published),
                                            page_tokens(sequence, sequence.published),
                                            page);
        if (kept != page) known = (sequence.published + 1) * kPageTokens;
        page = kept;
    }
    return known;
}

void Scheduler::release_pages(Sequence& sequence) {
    while (sequence.pages > 0) cache_.release(table(sequence, --sequence.pages));
    free_slots_.push_back(sequence.slot);
    sequence.slot = Sequence::kNoSlot;
}

}  // namespace strata
