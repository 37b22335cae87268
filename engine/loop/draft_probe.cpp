#include "engine/loop/draft_probe.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/loop/drafting.h"
#include "engine/loop/scheduler.h"
#include "engine/loop/step_runner.h"

namespace strata {

namespace {

constexpr uint32_t kPromptTokens = 40;  // crosses the end of a page, and so do the drafts behind

uint64_t no_clock() {
    return 0;
}

}  // namespace

uint32_t DraftProber::prompt_tokens() const {
    const uint64_t room = std::min<uint64_t>(plan_.max_context, plan_.kv_tokens / 2);
    return static_cast<uint32_t>(std::clamp<uint64_t>(room, kTokens + 2, kPromptTokens + kTokens) -
                                 kTokens);
}

DraftProber::Run DraftProber::run(uint32_t first, uint32_t count, bool has_drafts) {
    SchedulerConfig config;
    config.batch = count;
    config.prefill = std::min(plan_.prefill, Prober::kStepRowsMax);
    config.max_context = plan_.max_context;
    config.pages = plan_.pages();
    config.gather_max = runtime_.gather_max();
    config.prefix_cache = false;
    config.spec = has_drafts ? plan_.spec : 0;
    config.batch_mtp = plan_.batch_mtp;
    Scheduler scheduler(config);
    StepRunner runner(runtime_);
    std::optional<Drafting> drafting;
    if (has_drafts) {
        drafting.emplace(*runtime_.drafts(),
                         runtime_.vocab(),
                         plan_,
                         scheduler.page_tables(),
                         scheduler.page_table_stride(),
                         no_clock);
    }
    Run run;
    run.texts.resize(count);
    Effects effects;
    for (uint32_t s = first; s < first + count; ++s) {
        SamplingParams params;
        params.temperature = 0;
        params.max_tokens = kTokens;
        params.logprobs = 0;
        params.ignore_eos = true;
        // The second one is behind the first, so that steps mix what they do.
        const uint32_t length = std::max(prompt_tokens() - 3 * s, 1u);
        std::vector<int32_t> tokens(length);
        for (uint32_t i = 0; i < length; ++i) {
            tokens[i] =
                static_cast<int32_t>((uint64_t{s + 1} * 7919 + i * 104'729) % runtime_.vocab());
        }
        SamplingState state(params, runtime_.vocab(), tokens, kTokens);
        scheduler.submit(
            Request{
                s, s, 0, length, UINT32_MAX, 0, std::move(tokens), std::move(state), has_drafts},
            0,
            effects);
    }
    std::vector<uint32_t> depths;
    while (!scheduler.is_empty()) {
        if (drafting) {
            const std::span<const DraftCandidate> candidates = scheduler.plan_drafts(0);
            depths.clear();
            for (const DraftCandidate& candidate : candidates) depths.push_back(candidate.limit);
            drafting->draft(candidates, depths);
        }
        const Step& step = scheduler.plan(0);
        if (step.rows.rows == 0) break;
        const std::span<const Outcome> outcomes = runner.run(step);
        const std::span<const Advance> advances = scheduler.advance(outcomes);
        for (const Advance& advance : advances) {
            run.tried += advance.sequence->step_drafts > 0 ? 1 : 0;
            run.accepted += advance.sequence->step_accepted > 0 ? 1 : 0;
            if (advance.rejected == 0) continue;
            runtime_.roll_back(advance.sequence->slot, advance.sequence->computed);
        }
        if (drafting) drafting->absorb(advances);
        scheduler.complete(outcomes, 0, effects);
        for (const TokenEffect& effect : effects.tokens) {
            Text& text = run.texts[effect.rid - first];
            text.tokens.push_back(effect.token);
            text.logprobs.push_back(effect.logprob->logprob);
        }
        for (const protocol::Done& done : effects.done) {
            run.texts[done.rid - first].is_finite = done.reason != protocol::FinishReason::Error;
        }
        effects.clear();
        on_step_();
    }
    return run;
}

const DraftProber::Text& DraftProber::plain(uint32_t index) {
    std::optional<Text>& text = plain_[index];
    if (!text) text = std::move(run(index, 1, false).texts.front());
    return *text;
}

std::vector<Reason> DraftProber::compare(const Run& with) {
    for (uint32_t s = 0; s < with.texts.size(); ++s) {
        const Text& got = with.texts[s];
        const Text& wanted = plain(s);
        if (!got.is_finite || got.tokens.size() != wanted.tokens.size()) {
            return {{"numeric.logits", "the logits of a step with drafts are not finite"}};
        }
        for (size_t i = 0; i < got.tokens.size(); ++i) {
            if (got.tokens[i] == wanted.tokens[i] && got.logprobs[i] == wanted.logprobs[i]) {
                continue;
            }
            return {{"probe.differs",
                     "with drafts the logits of token " + std::to_string(i + 1) +
                         " behind a prompt are others than without"}};
        }
    }
    return {};
}

ProbeResult DraftProber::mtp() {
    ProbeResult result{"mtp", {}};
    plain(0);
    const Run with = run(0, 1, true);
    result.reasons = compare(with);
    if (!result.reasons.empty()) return result;
    const double tried = static_cast<double>(std::max<uint64_t>(with.tried, 1));
    if (static_cast<double>(with.accepted) < kAcceptanceMin * tried) {
        result.reasons.push_back(
            {"drafter.acceptance",
             "of " + std::to_string(with.tried) + " drafts for the next token " +
                 std::to_string(with.accepted) + " were right; at least a twentieth must be"});
    }
    return result;
}

ProbeResult DraftProber::batch_mtp() {
    ProbeResult result{"batch_mtp", {}};
    plain(0);
    plain(1);
    result.reasons = compare(run(0, 2, true));
    return result;
}

}  // namespace strata
