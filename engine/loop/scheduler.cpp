// Requests coming and going; scheduler_plan.cpp decides the rows of a step.
#include "engine/loop/scheduler.h"

#include <algorithm>
#include <string>

#include "engine/base/assert.h"
#include "engine/plan/mode.h"

namespace strata {

namespace {

double milliseconds(uint64_t from_us, uint64_t to_us) {
    return to_us > from_us ? static_cast<double>(to_us - from_us) / 1000.0 : 0.0;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      context_(static_cast<uint32_t>(
          std::min<uint64_t>(config.max_context, uint64_t{config.pages} * kPageTokens))),
      cache_(config.pages, config.prefix_cache),
      checkpoints_(config.batch, config.state_checkpoints),
      table_stride_((context_ + kPageTokens - 1) / kPageTokens),
      page_tables_(static_cast<size_t>(config.batch) * table_stride_, 0) {
    STRATA_ASSERT(config.batch > 0 && config.prefill > 0 && context_ > 0, "an empty plan");
    STRATA_ASSERT(config.gather_max >= config.batch, "each sequence needs its own logits row");
    const size_t rows =
        (config.batch_mtp ? size_t{config.batch} * (config.spec + 1) : config.batch + config.spec) +
        config.prefill;
    row_tokens_.reserve(rows);
    row_positions_.reserve(rows);
    row_sequences_.reserve(rows);
    gather_rows_.reserve(config.gather_max);
    gathers_.reserve(config.gather_max);
    running_.reserve(config.batch);
    advances_.reserve(config.batch);
    candidates_.reserve(config.batch);
    rids_.reserve(config.batch);
    copies_.reserve(size_t{config.batch} * 4);
    for (uint32_t slot = config.batch; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

Scheduler::~Scheduler() = default;

void Scheduler::insert(Queue& queue, std::unique_ptr<Sequence> sequence) {
    const auto place = std::upper_bound(
        queue.begin(), queue.end(), sequence, [](const auto& left, const auto& right) {
            return left->is_before(*right);
        });
    queue.insert(place, std::move(sequence));
}

std::optional<Reason> Scheduler::refusal(uint32_t prompt_tokens, uint32_t max_tokens) const {
    const uint32_t generated = max_tokens > 0 ? 1 : 0;
    if (uint64_t{prompt_tokens} + generated <= context_) return std::nullopt;
    return Reason{"context_length_exceeded",
                  "the prompt has " + std::to_string(prompt_tokens) +
                      " tokens; a sequence holds at most " + std::to_string(context_) +
                      (generated ? ", at least one of them generated" : "")};
}

void Scheduler::submit(Request&& request, uint64_t now_us, Effects& effects) {
    STRATA_ASSERT(!has(request.rid), "the intake lets a rid in once");
    auto sequence = std::make_unique<Sequence>(std::move(request));
    Sequence& taken = *sequence;
    const Request& r = taken.request;
    if (auto reason = refusal(r.prompt_tokens, r.params().max_tokens)) {
        return finish_error(taken,
                            ErrorKind::InvalidRequest,
                            std::move(reason->code),
                            std::move(reason->text),
                            now_us,
                            effects);
    }
    const bool is_used_up =
        r.output_tokens() > 0 && (!taken.wants_output() || taken.length() >= context_);
    if (is_used_up) return finish(taken, protocol::FinishReason::Length, now_us, effects);
    if (waiting_.size() >= config_.waiting_max ||
        waiting_tokens_ + taken.length() > config_.waiting_tokens_max) {
        return finish_error(taken,
                            ErrorKind::Overloaded,
                            "engine_queue_full",
                            std::to_string(waiting_.size()) + " requests with " +
                                std::to_string(waiting_tokens_) + " tokens wait in the engine; " +
                                "at most " + std::to_string(config_.waiting_max) + " and " +
                                std::to_string(config_.waiting_tokens_max) + " may",
                            now_us,
                            effects);
    }
    totals_.prompt_tokens += r.prompt_tokens;
    by_rid_.emplace(r.rid, &taken);
    waiting_tokens_ += taken.length();
    insert(waiting_, std::move(sequence));
}

void Scheduler::cancel(uint64_t rid, uint64_t now_us, Effects& effects) {
    const auto found = by_rid_.find(rid);
    if (found == by_rid_.end()) return;
    finish(*found->second, protocol::FinishReason::Cancelled, now_us, effects);
    remove_done();
}

void Scheduler::reject(uint64_t rid, Reason reason, uint64_t now_us, Effects& effects) {
    const auto found = by_rid_.find(rid);
    if (found == by_rid_.end()) return;
    finish_error(*found->second,
                 ErrorKind::InvalidRequest,
                 std::move(reason.code),
                 std::move(reason.text),
                 now_us,
                 effects);
    remove_done();
}

void Scheduler::credit(uint64_t rid, uint32_t upto) {
    const auto found = by_rid_.find(rid);
    if (found == by_rid_.end()) return;
    uint32_t& credit = found->second->request.credit;
    credit = std::max(credit, upto);  // absolute, so a late duplicate takes nothing back
}

void Scheduler::complete(std::span<const Outcome> outcomes, uint64_t now_us, Effects& effects) {
    if (!has_advanced_) advance(outcomes);
    for (size_t i = 0; i < gathers_.size(); ++i) {
        Sequence& sequence = *gathers_[i].sequence;
        if (sequence.is_done || outcomes[i].is_void) continue;
        if (!outcomes[i].is_finite) {
            // Whoever reuses these pages would fail the same way.
            for (uint32_t page = 0; page < sequence.pages; ++page) {
                cache_.forget(table(sequence, page));
            }
            const bool is_score = gathers_[i].use == GatherUse::Score;
            const uint32_t position = is_score ? gathers_[i].index - 1 : sequence.length() - 1;
            finish_error(sequence,
                         ErrorKind::NumericFault,
                         "numeric_fault",
                         "the logits at position " + std::to_string(position) + " are not finite",
                         now_us,
                         effects);
        } else if (gathers_[i].use == GatherUse::Score) {
            effects.prompt_logprobs.push_back(
                {sequence.request.rid, gathers_[i].index, outcomes[i].logprob});
            sequence.scored = gathers_[i].index + 1;
        } else {
            complete_sample(sequence, gathers_[i].index, outcomes[i], now_us, effects);
        }
    }
    for (const auto& sequence : running_) {
        const bool has_ended = !sequence->is_done && sequence->remaining() == 0;
        if (has_ended) finish(*sequence, protocol::FinishReason::Length, now_us, effects);
    }
    end_step();
    remove_done();
}

void Scheduler::end_step() {
    for (const auto& sequence : running_) {
        sequence->step_rows = 0;
        sequence->step_drafts = 0;
        sequence->step_accepted = 0;
        sequence->draft_count = 0;
    }
    step_ = {};
    gathers_.clear();
    advances_.clear();
    has_advanced_ = false;
}

// Tokens of accepted drafts have been appended by advance().
void Scheduler::complete_sample(
    Sequence& sequence, uint32_t index, const Outcome& outcome, uint64_t now_us, Effects& effects) {
    Request& request = sequence.request;
    if (sequence.first_token_us == 0) sequence.first_token_us = now_us;
    if (request.stops_at(outcome.token, index)) {
        return finish(sequence, protocol::FinishReason::Stop, now_us, effects, outcome.token);
    }
    if (!outcome.is_accepted) request.tokens.push_back(outcome.token);
    ++totals_.output_tokens;
    effects.tokens.push_back({request.rid, index, outcome.token, outcome.logprob});
    if (!sequence.wants_output() || sequence.length() >= context_) {
        finish(sequence, protocol::FinishReason::Length, now_us, effects);
    }
}

void Scheduler::fail(const Error& error, uint64_t now_us, Effects& effects) {
    for (const auto& sequence : running_) {
        if (sequence->step_rows == 0) continue;
        finish_error(*sequence, error.kind(), error.code(), error.what(), now_us, effects);
    }
    end_step();
    remove_done();
    forget_copies();
}

void Scheduler::finish(Sequence& sequence,
                       protocol::FinishReason reason,
                       uint64_t now_us,
                       Effects& effects,
                       int32_t stop_id) {
    add_done(sequence, reason, now_us, effects).stop_id = stop_id;
}

void Scheduler::finish_error(Sequence& sequence,
                             ErrorKind kind,
                             std::string code,
                             std::string text,
                             uint64_t now_us,
                             Effects& effects) {
    protocol::Done& done = add_done(sequence, protocol::FinishReason::Error, now_us, effects);
    done.error_kind = kind;
    done.code = std::move(code);
    done.text = std::move(text);
}

protocol::Done& Scheduler::add_done(Sequence& sequence,
                                    protocol::FinishReason reason,
                                    uint64_t now_us,
                                    Effects& effects) {
    STRATA_ASSERT(!sequence.is_done, "a request ends once");
    sequence.is_done = true;
    if (sequence.slot != Sequence::kNoSlot) release_pages(sequence);
    const Request& request = sequence.request;
    const uint64_t admitted = sequence.admitted_us ? sequence.admitted_us : now_us;
    const uint64_t first = sequence.first_token_us ? sequence.first_token_us : now_us;
    protocol::Done& done = effects.done.emplace_back();
    done.rid = request.rid;
    done.reason = reason;
    done.prompt_tokens = request.prompt_tokens;
    done.cached_tokens = sequence.cached_tokens;
    done.output_tokens = request.output_tokens();
    done.timings.queue_ms = milliseconds(request.submitted_us, admitted);
    done.timings.prefill_ms = milliseconds(admitted, first);
    done.timings.decode_ms = milliseconds(first, now_us);
    done.drafted_tokens = sequence.drafted_tokens;
    done.accepted_tokens = sequence.accepted_tokens;
    return done;
}

void Scheduler::remove_done() {
    const auto erase = [this](const std::unique_ptr<Sequence>& sequence) {
        if (sequence->is_done) by_rid_.erase(sequence->request.rid);
        return sequence->is_done;
    };
    for (const auto& sequence : waiting_) {
        if (sequence->is_done) waiting_tokens_ -= sequence->length();
    }
    std::erase_if(running_, erase);
    std::erase_if(waiting_, erase);
}

}  // namespace strata
