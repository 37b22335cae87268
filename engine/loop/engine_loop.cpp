#include "engine/loop/engine_loop.h"

#include <chrono>
#include <string>
#include <variant>

#include "engine/base/assert.h"
#include "engine/loop/exit_code.h"

namespace strata {

namespace {

constexpr uint64_t kStatsEveryUs = 1'000'000;
constexpr double kStepMsWeight = 0.1;        // of the newest step in the moving average
constexpr size_t kReplyBytesMax = 8 * 1024;  // most that one message is answered with at once

uint64_t monotonic_us() {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

SchedulerConfig scheduler_config(const ModePlan& plan, const Runtime& runtime) {
    SchedulerConfig config;
    config.batch = plan.batch;
    config.prefill = plan.prefill;
    config.max_context = plan.max_context;
    config.pages = plan.pages();
    config.gather_max = runtime.gather_max();
    const StateFacts states = runtime.states();
    config.prefix_cache = plan.prefix_cache && (!states.is_recurrent || states.checkpoints > 0);
    config.state_checkpoints = states.checkpoints;
    config.spec = plan.spec;
    config.batch_mtp = plan.batch_mtp;
    return config;
}

}  // namespace

EngineLoop::EngineLoop(Channel& channel,
                       Inbox& inbox,
                       Vitals& vitals,
                       Beacon& beacon,
                       Runtime& runtime,
                       const ModePlan& plan,
                       const protocol::Limits& limits,
                       bool has_fixed_drafts)
    : channel_(channel),
      inbox_(inbox),
      vitals_(vitals),
      beacon_(beacon),
      scheduler_(scheduler_config(plan, runtime)),
      intake_(scheduler_, runtime.vocab(), serving_modes(plan)),
      runtime_(runtime),
      runner_(runtime),
      has_fixed_drafts_(has_fixed_drafts),
      sender_(channel, limits),
      step_bytes_max_(EventSender::step_bytes_max(plan.batch, runtime.gather_max())) {
    STRATA_ASSERT(plan.rows_max() <= runtime.rows_max(), "the runtime is built for the plan");
    STRATA_ASSERT(step_bytes_max_ < Channel::kCapacityBytes, "a step's tokens fit the buffer");
    if (plan.spec == 0) return;
    STRATA_ASSERT(runtime.drafts() != nullptr, "a plan with drafts runs with a drafter");
    drafting_.emplace(*runtime.drafts(),
                      runtime.vocab(),
                      plan,
                      scheduler_.page_tables(),
                      scheduler_.page_table_stride(),
                      monotonic_us);
    draft_rids_.reserve(plan.batch);
    fixed_depths_.reserve(plan.batch);
}

protocol::ExitCode EngineLoop::run() {
    stats_us_ = monotonic_us();
    beacon_.set_rss(resident_.bytes());
    while (true) {
        const bool has_handled = take_messages();
        if (is_drained()) return protocol::ExitCode::Ok;
        const bool has_stepped = step();
        if (fatal_) {
            // Mode, requests and kernel stay: they say where it happened.
            beacon_.set_phase(BeaconPhase::Dying);
            channel_.send(*fatal_);
            return exit_code_of(fatal_->error_kind);
        }
        const uint64_t now_us = monotonic_us();
        send_stats_if_due(now_us);
        if (has_handled || has_stepped) continue;
        vitals_.is_busy.store(false, std::memory_order_relaxed);
        beacon_.idle(is_draining_ ? BeaconPhase::Drain : BeaconPhase::Ready);
        inbox_.wait(idle_limit(now_us));
    }
}

bool EngineLoop::take_messages() {
    if (next_message_ == messages_.size()) {
        messages_.clear();
        next_message_ = 0;
    }
    if (inbox_.take(messages_) && !is_draining_) {
        is_draining_ = true;
        intake_.drain();
    }
    const uint64_t now_us = monotonic_us();
    const size_t first = next_message_;
    // A peer that asks without reading the answers is not read either.
    while (next_message_ < messages_.size() && channel_.has_room(kReplyBytesMax)) {
        handle(messages_[next_message_++], now_us);
        sender_.send(vitals_.step.load(std::memory_order_relaxed), effects_);
    }
    has_changed_ = has_changed_ || next_message_ > first;
    return next_message_ > first;
}

void EngineLoop::handle(protocol::ToEngineMessage& message, uint64_t now_us) {
    if (auto* submit = std::get_if<protocol::Submit>(&message)) {
        intake_.submit(std::move(*submit), now_us, effects_);
    } else if (auto* prompt = std::get_if<protocol::Prompt>(&message)) {
        intake_.prompt(std::move(*prompt), now_us, effects_);
    } else if (auto* resume = std::get_if<protocol::Resume>(&message)) {
        intake_.resume(std::move(*resume), now_us, effects_);
    } else if (const auto* cancel = std::get_if<protocol::Cancel>(&message)) {
        intake_.cancel(cancel->rid, now_us, effects_);
    } else if (const auto* credit = std::get_if<protocol::Credit>(&message)) {
        intake_.credit(credit->rid, credit->upto);
    } else if (std::holds_alternative<protocol::Drain>(message)) {
        is_draining_ = true;
        intake_.drain();
    }
    // OFFER and PLAN cannot come in this phase, PING is answered by the reader thread.
}

bool EngineLoop::step() {
    // Without room for the result the sequences stay where they are until the peer reads.
    if (!channel_.has_room(step_bytes_max_)) return false;
    const uint64_t begin_us = monotonic_us();
    const uint64_t counter = vitals_.step.load(std::memory_order_relaxed) + 1;
    try {
        if (drafting_) propose_drafts(counter, begin_us);
    } catch (const Error& error) {
        // It has no step yet that could fail alone.
        fatal_ = protocol::Dying{error.kind(), error.code(), error.what()};
        return true;
    }
    const Step& step = scheduler_.plan(begin_us);
    if (step.rows.rows == 0) return false;
    vitals_.is_busy.store(true, std::memory_order_relaxed);
    vitals_.step.store(counter, std::memory_order_relaxed);
    beacon_.begin_step(
        counter, step.has_prompt ? BeaconPhase::Prefill : BeaconPhase::Decode, step.rids);
    try {
        run(step, begin_us);
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::DeviceLost || error.kind() == ErrorKind::OutOfMemory) {
            // Its requests get no DONE: another engine can go on with them.
            fatal_ = protocol::Dying{error.kind(), error.code(), error.what()};
            return true;
        }
        scheduler_.fail(error, monotonic_us(), effects_);
    }
    beacon_.end_step();
    const double ms = static_cast<double>(monotonic_us() - begin_us) / 1000.0;
    step_ms_ = step_ms_ == 0 ? ms : step_ms_ + kStepMsWeight * (ms - step_ms_);
    has_changed_ = true;
    sender_.send(counter, effects_);
    return true;
}

void EngineLoop::propose_drafts(uint64_t counter, uint64_t now_us) {
    const std::span<const DraftCandidate> candidates = scheduler_.plan_drafts(now_us);
    if (candidates.empty()) return;
    draft_rids_.clear();
    for (const DraftCandidate& candidate : candidates) {
        draft_rids_.push_back(candidate.sequence->request.rid);
    }
    beacon_.begin_step(counter, BeaconPhase::Draft, draft_rids_);
    if (!has_fixed_drafts_) {
        drafting_->propose(candidates, scheduler_.running_count());
        return;
    }
    fixed_depths_.clear();
    for (const DraftCandidate& candidate : candidates) fixed_depths_.push_back(candidate.limit);
    drafting_->draft(candidates, fixed_depths_);
}

void EngineLoop::run(const Step& step, uint64_t begin_us) {
    const bool decodes = !step.has_prompt;
    const uint32_t rows = step.rows.rows;
    const uint64_t run_us = drafting_ ? monotonic_us() : begin_us;
    const std::span<const Outcome> outcomes = runner_.run(step);
    if (drafting_) {
        if (decodes) drafting_->step_took(rows, monotonic_us() - run_us);
        const std::span<const Advance> advances = scheduler_.advance(outcomes);
        for (const Advance& advance : advances) {
            if (advance.rejected == 0) continue;
            runtime_.roll_back(advance.sequence->slot, advance.sequence->computed);
        }
        beacon_.set_phase(BeaconPhase::Draft);
        drafting_->absorb(advances);
    }
    scheduler_.complete(outcomes, monotonic_us(), effects_);
}

bool EngineLoop::is_drained() const {
    return is_draining_ && next_message_ == messages_.size() && intake_.is_empty() &&
           scheduler_.is_empty();
}

void EngineLoop::send_stats_if_due(uint64_t now_us) {
    if (!has_changed_ || now_us - stats_us_ < kStatsEveryUs) return;
    if (!channel_.has_room(kReplyBytesMax)) return;
    const PrefixCache& pages = scheduler_.pages();
    const Scheduler::Totals& totals = scheduler_.totals();
    const uint64_t resident_bytes = resident_.bytes();
    beacon_.set_rss(resident_bytes);
    channel_.send(protocol::Stats{vitals_.step.load(std::memory_order_relaxed),
                                  scheduler_.running_count(),
                                  scheduler_.waiting_count() + intake_.partial_count(),
                                  pages.used_count(),
                                  pages.idle_count(),
                                  pages.page_count(),
                                  totals.prompt_tokens,
                                  totals.cached_tokens,
                                  totals.output_tokens,
                                  step_ms_,
                                  resident_bytes,
                                  totals.draft_steps,
                                  totals.drafted_tokens,
                                  totals.accepted_tokens,
                                  {totals.accepted_at.begin(), totals.accepted_at.end()}});
    stats_us_ = now_us;
    has_changed_ = false;
}

// How long to sleep at most: until the next STATS is due. Without limit when nothing changed, or
// when STATS is overdue for want of room: then the writer wakes us.
std::optional<std::chrono::milliseconds> EngineLoop::idle_limit(uint64_t now_us) const {
    const uint64_t since = now_us - stats_us_;
    if (!has_changed_ || since >= kStatsEveryUs) return std::nullopt;
    return std::chrono::milliseconds((kStatsEveryUs - since) / 1000 + 1);
}

}  // namespace strata
