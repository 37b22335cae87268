// Drives a Scheduler with the hash model as the loop would, and holds every request against what it
// must produce alone: tokens, their offsets, scores, the one DONE, credit.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/loop/drafting.h"
#include "engine/loop/scheduler.h"
#include "engine/loop/step_runner.h"
#include "engine/plan/step_plan.h"
#include "tests/engine_unit/check.h"
#include "tests/engine_unit/hash_runtime.h"

namespace strata::testing {

inline constexpr uint32_t kVocab = 23;

struct Expected {
    std::vector<int32_t> tokens;  // generated, resumed ones included
    protocol::FinishReason reason = protocol::FinishReason::Length;
    int32_t stop_id = -1;
};

struct Tracked {
    std::vector<int32_t> prompt;
    SamplingParams params;
    Expected expected;
    std::vector<int32_t> delivered;  // resumed ones first
    std::vector<uint32_t> scored;    // prompt indices in order of arrival
    uint32_t credit = 0xFFFF'FFFF;
    bool may_fail = false;  // took part in a step that was told to fail
    std::vector<protocol::Done> done;

    bool is_live() const { return done.empty(); }
    bool is_held() const { return is_live() && delivered.size() >= credit; }
};

class World {
  public:
    explicit World(const SchedulerConfig& chosen)
        : config(chosen),
          plan(plan_of(chosen)),
          runtime(kVocab,
                  chosen.pages,
                  plan.rows_max(),
                  chosen.gather_max,
                  chosen.spec == 0 ? 0 : draft_sequences_of(plan),
                  chosen.state_checkpoints > 0 ? chosen.batch + chosen.state_checkpoints : 0),
          scheduler(chosen),
          runner(runtime),
          reference_sampler(kVocab) {
        if (chosen.spec == 0) return;
        drafting.emplace(*runtime.drafts(),
                         kVocab,
                         plan,
                         scheduler.page_tables(),
                         scheduler.page_table_stride(),
                         [] { return uint64_t{0}; });
    }

    // What the request yields alone.
    Expected expect(const std::vector<int32_t>& prompt, const SamplingParams& params) {
        Expected out;
        std::vector<float> logits(kVocab);
        HashRuntime::History history;
        if (params.prompt_logprobs >= 0) {
            for (size_t i = 1; i < prompt.size(); ++i) {
                history.push(prompt[i - 1]);
                runtime.reference_logits(history, logits.data());
                if (reference_sampler.score(logits.data(), prompt[i], 0).fault !=
                    SampleFault::None) {
                    out.reason = protocol::FinishReason::Error;
                    return out;
                }
            }
        }
        history = {};
        for (const int32_t token : prompt) history.push(token);
        SamplingState state(params, kVocab, prompt, params.max_tokens);
        while (out.tokens.size() < params.max_tokens &&
               prompt.size() + out.tokens.size() < scheduler.context()) {
            const auto index = static_cast<uint32_t>(out.tokens.size());
            runtime.reference_logits(history, logits.data());
            const Sampled sampled = reference_sampler.sample(logits.data(), state, index);
            if (sampled.fault != SampleFault::None) {
                out.reason = protocol::FinishReason::Error;
                return out;
            }
            const auto& ids = params.stop_ids;
            if (!params.ignore_eos && index >= params.min_tokens &&
                std::find(ids.begin(), ids.end(), sampled.token) != ids.end()) {
                out.reason = protocol::FinishReason::Stop;
                out.stop_id = sampled.token;
                return out;
            }
            out.tokens.push_back(sampled.token);
            history.push(sampled.token);
            state.accept(sampled.token);
        }
        return out;
    }

    // `resumed`: how many of its tokens an earlier engine is said to have generated.
    uint64_t submit(std::vector<int32_t> prompt,
                    SamplingParams params,
                    uint32_t credit = 0xFFFF'FFFF,
                    int64_t priority = 0,
                    uint32_t resumed = 0) {
        const uint64_t rid = next_rid++;
        Tracked& tracked = requests[rid];
        tracked.expected = expect(prompt, params);
        tracked.prompt = std::move(prompt);
        tracked.params = params;
        tracked.credit = credit;
        const auto& known = tracked.expected.tokens;
        tracked.delivered.assign(known.begin(),
                                 known.begin() + std::min<ptrdiff_t>(resumed, std::ssize(known)));
        SamplingState state(params, kVocab, tracked.prompt, params.max_tokens);
        state.replay(tracked.delivered);
        std::vector<int32_t> tokens = tracked.prompt;
        tokens.insert(tokens.end(), tracked.delivered.begin(), tracked.delivered.end());
        scheduler.submit(Request{rid,
                                 rid,
                                 priority,
                                 static_cast<uint32_t>(tracked.prompt.size()),
                                 credit,
                                 now_us,
                                 std::move(tokens),
                                 std::move(state),
                                 may_draft},
                         now_us,
                         effects);
        take_effects();
        return rid;
    }

    void cancel(uint64_t rid) {
        scheduler.cancel(rid, now_us, effects);
        take_effects();
        CHECK(!requests.at(rid).is_live() && !scheduler.has(rid), rid);
    }

    void credit(uint64_t rid, uint32_t upto) {
        Tracked& tracked = requests.at(rid);
        tracked.credit = std::max(tracked.credit, upto);
        scheduler.credit(rid, upto);
    }

    // One step; false when the scheduler has nothing to do.
    bool step() {
        now_us += 1000;
        if (drafting) propose();
        const Step& step = scheduler.plan(now_us);
        const RowView& rows = step.rows;
        CHECK(rows.rows <= plan.rows_max());
        CHECK(chunk_rows(step) <= config.prefill, chunk_rows(step));
        CHECK(rows.gather_rows <= config.gather_max && step.gathers.size() == rows.gather_rows);
        CHECK(std::is_sorted(rows.gather, rows.gather + rows.gather_rows));
        CHECK(scheduler.running_count() <= config.batch);
        if (rows.rows == 0) return false;
        step_rows.push_back(rows.rows);
        try {
            const std::span<const Outcome> outcomes = runner.run(step);
            if (drafting) absorb(scheduler.advance(outcomes));
            scheduler.complete(outcomes, now_us, effects);
        } catch (const Error& error) {
            for (auto& [rid, tracked] : requests)
                tracked.may_fail = tracked.may_fail || tracked.is_live();
            scheduler.fail(error, now_us, effects);
        }
        take_effects();
        return true;
    }

    // From now on the request must end in a numeric fault instead of its next token.
    static void expect_fault(Tracked& tracked) {
        tracked.expected.tokens = tracked.delivered;
        tracked.expected.reason = protocol::FinishReason::Error;
    }

    void run() {
        while (step()) {
        }
    }

    void check_empty() {
        CHECK(scheduler.is_empty());
        CHECK(scheduler.pages().used_count() == 0, scheduler.pages().used_count());
        CHECK(scheduler.pages().available_count() == config.pages);
        for (const auto& [rid, tracked] : requests) CHECK(tracked.done.size() == 1, rid);
    }

    uint64_t rows_total() const {
        uint64_t total = 0;
        for (const uint32_t rows : step_rows) total += rows;
        return total;
    }

    SchedulerConfig config;
    ModePlan plan;
    HashRuntime runtime;
    Scheduler scheduler;
    StepRunner runner;
    Sampler reference_sampler;
    std::optional<Drafting> drafting;
    bool may_draft = true;  // the next request
    // How many of `limit` drafts a sequence gets.
    std::function<uint32_t(uint32_t limit)> depth = [](uint32_t limit) { return limit; };
    uint64_t drafts_verified = 0;
    uint64_t drafts_accepted = 0;
    Effects effects;
    std::map<uint64_t, Tracked> requests;
    std::vector<uint32_t> step_rows;
    uint64_t next_rid = 1;
    uint64_t now_us = 1;

  private:
    static ModePlan plan_of(const SchedulerConfig& config) {
        ModePlan plan;
        plan.batch = config.batch;
        plan.prefill = config.prefill;
        plan.max_context = config.max_context;
        plan.kv_tokens = uint64_t{config.pages} * kPageTokens;
        plan.spec = config.spec;
        plan.batch_mtp = config.batch_mtp;
        return plan;
    }

    // Rows of sequences that have more than one in the step, but for those with drafts, whose rows
    // all choose a token: prompt rows for certain.
    static uint32_t chunk_rows(const Step& step) {
        std::map<uint32_t, uint32_t> of_sequence;
        for (uint32_t row = 0; row < step.rows.rows; ++row) {
            ++of_sequence[step.rows.sequences[row]];
        }
        std::map<uint32_t, uint32_t> sampled;
        for (const Gather& gather : step.gathers) {
            if (gather.use == GatherUse::Sample) ++sampled[gather.sequence->slot];
        }
        uint32_t total = 0;
        for (const auto& [sequence, count] : of_sequence) {
            const bool has_drafts = sampled.contains(sequence) && sampled.at(sequence) > 1;
            if (has_drafts) CHECK(sampled.at(sequence) == count, count);
            total += count > 1 && !has_drafts ? count : 0;
        }
        return total;
    }

    void propose() {
        const std::span<const DraftCandidate> candidates = scheduler.plan_drafts(now_us);
        CHECK(config.batch_mtp || candidates.size() <= 1);
        std::vector<uint32_t> depths;
        for (const DraftCandidate& candidate : candidates) {
            CHECK(candidate.limit >= 1 && candidate.limit <= config.spec, candidate.limit);
            depths.push_back(depth(candidate.limit));
        }
        drafting->draft(candidates, depths);
    }

    void absorb(std::span<const Advance> advances) {
        for (const Advance& advance : advances) {
            const Sequence& sequence = *advance.sequence;
            CHECK(advance.rejected == sequence.step_drafts - sequence.step_accepted);
            if (advance.rejected > 0) runtime.roll_back(sequence.slot, sequence.computed);
            drafts_verified += sequence.step_drafts;
            drafts_accepted += sequence.step_accepted;
            // The drafter knows what the model finds best; only what is chosen otherwise, or not
            // at all, may differ.
            const SamplingParams& params = sequence.request.params();
            const bool is_certain = params.temperature == 0 && params.stop_ids.empty() &&
                                    params.repetition_penalty == 1 &&
                                    params.frequency_penalty == 0 && runtime.poison_every == 0 &&
                                    runtime.misguess_every == 0;
            if (is_certain) CHECK(advance.rejected == 0, sequence.request.rid, sequence.computed);
        }
        drafting->absorb(advances);
    }

    void take_effects() {
        for (const PromptLogprobEffect& effect : effects.prompt_logprobs) take_score(effect);
        for (const TokenEffect& effect : effects.tokens) take_token(effect);
        for (const protocol::Done& done : effects.done) take_done(done);
        effects.clear();
    }

    void take_token(const TokenEffect& effect) {
        Tracked& tracked = requests.at(effect.rid);
        CHECK(tracked.is_live(), effect.rid);
        CHECK(effect.offset == tracked.delivered.size(), effect.rid, effect.offset);
        CHECK(effect.offset < tracked.credit, effect.rid, "no credit");
        CHECK(effect.offset < tracked.expected.tokens.size(), effect.rid, "too many tokens");
        CHECK(effect.token == tracked.expected.tokens[effect.offset], effect.rid, effect.offset);
        CHECK((effect.logprob != nullptr) == (tracked.params.logprobs >= 0), effect.rid);
        tracked.delivered.push_back(effect.token);
        CHECK(tracked.params.prompt_logprobs < 0 ||
                  tracked.scored.size() + 1 == tracked.prompt.size(),
              effect.rid,
              "scores come before the first token");
    }

    void take_score(const PromptLogprobEffect& effect) {
        Tracked& tracked = requests.at(effect.rid);
        CHECK(tracked.is_live() && tracked.params.prompt_logprobs >= 0, effect.rid);
        CHECK(effect.offset == tracked.scored.size() + 1, effect.rid, effect.offset);
        std::vector<float> logits(kVocab);
        HashRuntime::History history;
        for (uint32_t i = 0; i < effect.offset; ++i) history.push(tracked.prompt[i]);
        runtime.reference_logits(history, logits.data());
        const Scored scored =
            reference_sampler.score(logits.data(),
                                    tracked.prompt[effect.offset],
                                    static_cast<uint32_t>(tracked.params.prompt_logprobs));
        CHECK(scored.logprob.logprob == effect.logprob->logprob, effect.rid, effect.offset);
        CHECK(scored.logprob.top_count == effect.logprob->top_count, effect.rid);
        tracked.scored.push_back(effect.offset);
    }

    void take_done(const protocol::Done& done) {
        Tracked& tracked = requests.at(done.rid);
        CHECK(tracked.is_live(), done.rid, "a second DONE");
        tracked.done.push_back(done);
        CHECK(done.output_tokens == tracked.delivered.size(), done.rid);
        CHECK(done.prompt_tokens == tracked.prompt.size(), done.rid);
        CHECK(done.accepted_tokens <= done.drafted_tokens, done.rid);
        CHECK(done.accepted_tokens <= done.output_tokens, done.rid);
        CHECK(done.cached_tokens < std::max<size_t>(tracked.prompt.size() + 1, 1), done.rid);
        const bool is_early = done.reason == protocol::FinishReason::Cancelled ||
                              done.code == "context_length_exceeded" ||
                              done.code == "engine_queue_full" ||
                              (done.code == "test.step" && tracked.may_fail);
        if (is_early) return;
        CHECK(done.reason == tracked.expected.reason, done.rid, done.code, done.text);
        CHECK(done.stop_id == tracked.expected.stop_id, done.rid, done.stop_id);
        CHECK(tracked.delivered == tracked.expected.tokens, done.rid);
        if (done.reason == protocol::FinishReason::Error) {
            CHECK(done.error_kind == ErrorKind::NumericFault, done.rid, done.code);
        } else if (tracked.params.prompt_logprobs >= 0 && !tracked.prompt.empty() &&
                   done.output_tokens == 0) {
            CHECK(tracked.scored.size() + 1 == tracked.prompt.size(), done.rid);
        }
    }
};

inline std::vector<int32_t> make_prompt(uint64_t family, uint32_t length) {
    std::vector<int32_t> out(length);
    uint64_t h = family * 0x9E37'79B9'7F4A'7C15u + 1;
    for (int32_t& token : out) {
        h ^= h << 13;
        h ^= h >> 7;
        h ^= h << 17;
        token = static_cast<int32_t>((h >> 33) % kVocab);
    }
    return out;
}

inline SamplingParams greedy(uint32_t max_tokens) {
    SamplingParams params;
    params.temperature = 0;
    params.max_tokens = max_tokens;
    return params;
}

}  // namespace strata::testing
