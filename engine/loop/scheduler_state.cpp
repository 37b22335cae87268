// Prefixes of models with recurrent layers: their pages are of use only up to a position at which
// the state was kept. A prompt takes over known pages up to the last such position; it keeps its
// own state at the last page border of the prompt, where the pages known to it ended (others share
// that prefix), now and then on the way, and at each page border that its answer passes. The
// latter two move on with the sequence, so that it leaves one behind: at the end of its turn.
#include <algorithm>

#include "engine/base/assert.h"
#include "engine/loop/scheduler.h"
#include "engine/plan/mode.h"

namespace strata {

namespace {

constexpr uint32_t kCheckpointTokens = 1024;  // between states kept on the way through a prompt

}  // namespace

// Of the known tokens of a sequence from its beginning, how many lie in pages that are known, and
// up to where it may take them over.
Scheduler::KnownPrefix Scheduler::known_prefix(const Sequence& sequence) const {
    KnownPrefix known;
    if (!cache_.is_enabled() || sequence.request.scores_prompt()) return known;
    const uint32_t usable = (sequence.length() - 1) / kPageTokens;
    PrefixCache::Node parent = PrefixCache::kRoot;
    for (uint32_t page_index = 0; page_index < usable; ++page_index) {
        const auto page = cache_.peek(parent, page_tokens(sequence, page_index));
        if (!page) break;
        parent = cache_.node(*page);
        known.pages = page_index + 1;
        if (!has_states() || checkpoints_.has(parent)) known.usable_pages = known.pages;
    }
    return known;
}

// At the beginning of a sequence: takes over the known pages and the state behind them, and
// decides where to keep its own.
void Scheduler::adopt_checkpoint(Sequence& sequence) {
    if (!cache_.is_enabled() || sequence.computed > 0 || sequence.pages > 0) return;
    if (sequence.request.scores_prompt()) return;
    const KnownPrefix known = known_prefix(sequence);
    PrefixCache::Node parent = PrefixCache::kRoot;
    for (uint32_t page_index = 0; page_index < known.usable_pages; ++page_index) {
        const auto page = cache_.find(parent, page_tokens(sequence, page_index));
        STRATA_ASSERT(page.has_value(), "a known page is found again");
        table(sequence, sequence.pages++) = *page;
        parent = cache_.node(*page);
    }
    sequence.computed = known.usable_pages * kPageTokens;
    sequence.published = sequence.pages;
    sequence.checkpoint_shared = known.pages * kPageTokens;
    sequence.checkpoint_last = (sequence.length() - 1) / kPageTokens * kPageTokens;
    if (known.usable_pages == 0) return;
    const auto slot = checkpoints_.find(parent);
    STRATA_ASSERT(slot.has_value(), "pages are taken over up to a checkpoint");
    copies_.push_back({*slot, sequence.slot});
    if (sequence.was_preempted) return;
    const uint32_t cached = std::min(sequence.computed, sequence.request.prompt_tokens);
    totals_.cached_tokens += cached - sequence.cached_tokens;
    sequence.cached_tokens = cached;
}

// The next position behind what is computed at which the state is kept; steps end there.
uint32_t Scheduler::next_checkpoint(const Sequence& sequence) const {
    uint32_t next = (sequence.computed / kCheckpointTokens + 1) * kCheckpointTokens;
    for (const uint32_t at : {sequence.checkpoint_shared, sequence.checkpoint_last}) {
        if (at > sequence.computed) next = std::min(next, at);
    }
    return next;
}

// Keeps the state of a sequence that has come to a position worth it. The copy is made before the
// rows of the next step, while the slot still holds this state.
void Scheduler::keep_state(Sequence& sequence) {
    if (!has_states() || !cache_.is_enabled()) return;
    const uint32_t at = sequence.computed;
    if (at == 0 || at % kPageTokens != 0 || sequence.published * kPageTokens != at) return;
    const bool is_lasting = at == sequence.checkpoint_shared || at == sequence.checkpoint_last;
    const bool is_passing = at > sequence.checkpoint_last || at % kCheckpointTokens == 0;
    if (!is_lasting && !is_passing) return;
    const PrefixCache::Node node = cache_.node(table(sequence, sequence.published - 1));
    if (node == PrefixCache::kNoNode) return;
    const auto slot =
        checkpoints_.add(node, is_lasting ? PrefixCache::kNoNode : sequence.checkpoint_passing);
    if (!slot) return;
    if (!is_lasting) sequence.checkpoint_passing = node;
    copies_.push_back({sequence.slot, *slot});
}

// A step with copies has failed, so that none of them is certain: no checkpoint is, and sequences
// that were to begin with one, but had no rows in that step, begin again.
void Scheduler::forget_copies() {
    if (copies_.empty()) return;
    checkpoints_.clear();
    for (size_t i = running_.size(); i > 0; --i) {
        const bool was_to_begin = std::any_of(copies_.begin(), copies_.end(), [&](StateCopy copy) {
            return copy.to == running_[i - 1]->slot;
        });
        if (was_to_begin) requeue(i - 1);
    }
    copies_.clear();
}

// Whether another running sequence will soon keep a state that `sequence`, which has computed
// nothing yet, can begin with. Only one that is further on, or older, counts, so no two wait for
// each other.
bool Scheduler::is_checkpoint_under_way(const Sequence& sequence) const {
    if (!cache_.is_enabled() || sequence.request.scores_prompt() || sequence.computed > 0)
        return false;
    return std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
        if (other.get() == &sequence) return false;
        if (other->computed == 0 && !other->is_before(sequence)) return false;
        const auto will_serve = [&](uint32_t at) {
            return at > other->computed && at < sequence.length() && at < other->length() &&
                   std::equal(sequence.request.tokens.begin(),
                              sequence.request.tokens.begin() + at,
                              other->request.tokens.begin());
        };
        return will_serve(other->checkpoint_last) || will_serve(other->checkpoint_shared);
    });
}

}  // namespace strata
