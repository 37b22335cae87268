// Owns all requests between SUBMIT and DONE, the pages they hold and which rows the next step
// computes. A plain class: events in (submit, cancel, credit, outcomes of a step), effects out; no
// I/O and no clock (time is passed in, microseconds of any monotonic clock).
//
// Order of service is priority, then arrival. Each step carries one row of every decoding sequence
// and up to `prefill` prompt rows, so decodes never wait for prompts and prompts always advance.
// Pages are taken as sequences grow; when none is left the youngest sequence gives its pages back
// and later computes them again from its tokens (nothing it delivered changes), so the oldest
// always finishes. A sequence out of credit gives its place to one that waits, in the same way.
// A sequence whose next prompt page is being computed by another waits for it.
//
// With drafts, plan_drafts() names the sequences that may have some before plan() makes the step
// that verifies them: a row for the last token and one for each draft. Drafts never take a page
// from a sequence, and none goes into the prefix cache before it is accepted; they are never more
// than credit, max_tokens and context allow tokens.
// Each request gets exactly one Done.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/base/error.h"
#include "engine/loop/effects.h"
#include "engine/loop/step.h"
#include "engine/state/prefix_cache.h"
#include "engine/state/state_checkpoints.h"

namespace strata {

struct SchedulerConfig {
    uint32_t batch = 1;        // sequences that may run at once
    uint32_t prefill = 1;      // prompt rows of a step beside the decode rows
    uint32_t max_context = 0;  // tokens a sequence may reach
    uint32_t pages = 0;        // size of the pool
    uint32_t gather_max = 1;   // gather rows of a step; at least `batch`
    bool prefix_cache = true;
    uint32_t state_checkpoints = 0;  // slots for recurrent states, behind those of sequences; with
                                     // a prefix cache, 0 = the model has no such states
    uint32_t waiting_max = 4096;     // requests that may wait
    uint64_t waiting_tokens_max = 1u << 25;  // their tokens
    uint32_t spec = 0;                       // drafts a sequence may verify per step
    bool batch_mtp = false;                  // drafts also while sequences share a step
};

class Scheduler {
  public:
    explicit Scheduler(const SchedulerConfig& config);
    ~Scheduler();

    // Tokens a sequence can reach here: the context limit, or the whole pool if that is smaller.
    uint32_t context() const { return context_; }

    bool has(uint64_t rid) const { return by_rid_.contains(rid); }

    // Why a prompt of this length can never be served here; nullopt if it can.
    std::optional<Reason> refusal(uint32_t prompt_tokens, uint32_t max_tokens) const;

    // Takes a request, or ends it at once: what can never fit, has nothing left to do, or finds
    // the queue full. `request.rid` must not be present.
    void submit(Request&& request, uint64_t now_us, Effects& effects);

    // Unknown rids are ignored: the request may just have ended.
    void cancel(uint64_t rid, uint64_t now_us, Effects& effects);
    void credit(uint64_t rid, uint32_t upto);

    // Ends a request whose peer broke a rule. Unknown rids are ignored.
    void reject(uint64_t rid, Reason reason, uint64_t now_us, Effects& effects);

    // Admits what fits and answers who may have drafts in the next step, with pages taken for them:
    // sequences that decode. Drafts go into Sequence::drafts before plan(); without them the step
    // is a plain one. Valid until the next call of any method but plan().
    std::span<const DraftCandidate> plan_drafts(uint64_t now_us);

    // Admits what fits and plans the next step. `rows.rows == 0`: nothing can be done until the
    // next event. Each non-empty step must be answered by complete() or fail().
    const Step& plan(uint64_t now_us);

    // The step ran: takes over which of its rows last. `outcomes` as for complete(), which must
    // follow. Valid until then: one entry for each sequence with rows in the step.
    std::span<const Advance> advance(std::span<const Outcome> outcomes);

    // The step ran: `outcomes` has one entry per gather. Advances where advance() was not called.
    void complete(std::span<const Outcome> outcomes, uint64_t now_us, Effects& effects);

    // The step failed: the sequences that took part end with this error.
    void fail(const Error& error, uint64_t now_us, Effects& effects);

    uint32_t running_count() const { return static_cast<uint32_t>(running_.size()); }
    uint32_t waiting_count() const { return static_cast<uint32_t>(waiting_.size()); }
    bool is_empty() const { return running_.empty() && waiting_.empty(); }
    const PrefixCache& pages() const { return cache_; }
    // [batch, page_table_stride()], as in RowView; the same memory for all steps.
    const uint32_t* page_tables() const { return page_tables_.data(); }
    uint32_t page_table_stride() const { return table_stride_; }

    struct Totals {
        uint64_t prompt_tokens = 0;
        uint64_t cached_tokens = 0;
        uint64_t output_tokens = 0;
        uint64_t preemptions = 0;
        uint64_t draft_steps = 0;  // times that a sequence's drafts were verified
        uint64_t drafted_tokens = 0;
        uint64_t accepted_tokens = 0;
        std::array<uint64_t, kSpecMax> accepted_at{};  // by place behind the last token
    };
    const Totals& totals() const { return totals_; }

  private:
    using Queue = std::vector<std::unique_ptr<Sequence>>;  // in order of service

    void admit(uint64_t now_us);
    bool fits(const Sequence& sequence) const;
    uint32_t plan_rows(Sequence& sequence, uint32_t prefill_left, uint32_t gather_left);
    uint32_t reserve_pages(Sequence& sequence, uint32_t rows);
    uint32_t draft_limit(const Sequence& sequence) const;
    uint32_t reserve_spare_pages(Sequence& sequence, uint32_t rows);
    void count_drafts(Sequence& sequence);
    void end_step();
    void emit_rows(Sequence& sequence, uint32_t rows);
    void adopt_cached_pages(Sequence& sequence);
    bool is_page_under_way(const Sequence& sequence) const;
    struct KnownPrefix {
        uint32_t pages = 0;
        uint32_t usable_pages = 0;  // of these
    };
    bool has_states() const { return checkpoints_.count() > 0; }
    KnownPrefix known_prefix(const Sequence& sequence) const;
    void adopt_checkpoint(Sequence& sequence);
    uint32_t next_checkpoint(const Sequence& sequence) const;
    void keep_state(Sequence& sequence);
    void forget_copies();
    bool is_checkpoint_under_way(const Sequence& sequence) const;
    bool preempt_youngest(const Sequence& for_sequence);
    bool park_held();
    void requeue(size_t index);
    uint32_t publish_pages(Sequence& sequence);
    void release_pages(Sequence& sequence);
    void complete_sample(Sequence& sequence,
                         uint32_t index,
                         const Outcome& outcome,
                         uint64_t now_us,
                         Effects& effects);
    void finish(Sequence& sequence,
                protocol::FinishReason reason,
                uint64_t now_us,
                Effects& effects,
                int32_t stop_id = -1);
    void finish_error(Sequence& sequence,
                      ErrorKind kind,
                      std::string code,
                      std::string text,
                      uint64_t now_us,
                      Effects& effects);
    protocol::Done& add_done(Sequence& sequence,
                             protocol::FinishReason reason,
                             uint64_t now_us,
                             Effects&);
    void remove_done();

    PrefixCache::Node parent_node(const Sequence& sequence, uint32_t page_index) const;
    std::span<const int32_t> page_tokens(const Sequence& sequence, uint32_t page_index) const;
    uint32_t& table(const Sequence& sequence, uint32_t page_index) {
        return page_tables_[static_cast<size_t>(sequence.slot) * table_stride_ + page_index];
    }
    uint32_t table(const Sequence& sequence, uint32_t page_index) const {
        return page_tables_[static_cast<size_t>(sequence.slot) * table_stride_ + page_index];
    }
    static void insert(Queue& queue, std::unique_ptr<Sequence> sequence);

    SchedulerConfig config_;
    uint32_t context_;
    PrefixCache cache_;
    StateCheckpoints checkpoints_;
    std::vector<StateCopy> copies_;  // before the rows of the next step, in order
    Queue running_;
    Queue waiting_;
    uint64_t waiting_tokens_ = 0;
    std::unordered_map<uint64_t, Sequence*> by_rid_;
    std::vector<uint32_t> free_slots_;
    uint32_t table_stride_;
    std::vector<uint32_t> page_tables_;  // [batch, table_stride]
    Totals totals_;

    // The step under way; all sized at construction.
    Step step_;
    std::vector<int32_t> row_tokens_;
    std::vector<uint32_t> row_positions_;
    std::vector<uint32_t> row_sequences_;
    std::vector<uint32_t> gather_rows_;
    std::vector<uint64_t> rids_;  // of the step
    std::vector<Gather> gathers_;
    std::vector<Advance> advances_;
    bool has_advanced_ = false;
    std::vector<DraftCandidate> candidates_;
};

}  // namespace strata
