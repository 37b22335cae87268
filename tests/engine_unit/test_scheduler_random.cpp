// Random schedules, two thousand seeds: whatever arrives, leaves, pauses, fails or is preempted,
// each request gets exactly what it gets alone, one DONE, and no page stays behind. Three in four
// have drafts; a drafter that could know the next token then knows it.
#include <random>

#include "tests/engine_unit/scheduler_world.h"

namespace strata::testing {

class Schedule {
  public:
    explicit Schedule(uint64_t seed) : random_(seed), world_(make_config()) {
        world_.runtime.poison_every = one_in(4) ? 200 : 0;
        may_fault_ = one_in(4);
        world_.runtime.misguess_every = one_in(2) ? between(2, 6) : 0;
        world_.depth = [this](uint32_t limit) { return one_in(3) ? between(0, limit) : limit; };
        // Short prompts with long answers outgrow the pool together; long prompts reuse and share.
        prompt_max_ = between(1, one_in(3) ? 20 : world_.scheduler.context() + 10);
    }

    void run() {
        const uint32_t requests = between(1, 24);
        uint32_t sent = 0;
        while (sent < requests || !world_.scheduler.is_empty()) {
            if (sent < requests && one_in(2)) {
                submit();
                ++sent;
            }
            if (one_in(12)) cancel_any();
            if (one_in(6)) raise_any_credit();
            if (may_fault_ && one_in(60)) world_.runtime.fault_next = true;
            if (!world_.step() && sent == requests) unblock();
        }
        world_.check_empty();
    }

    uint64_t preemptions() const { return world_.scheduler.totals().preemptions; }
    bool has_states() const { return world_.config.state_checkpoints > 0; }
    uint64_t cached_tokens() const { return world_.scheduler.totals().cached_tokens; }
    uint64_t drafts_verified() const { return world_.drafts_verified; }
    uint64_t drafts_accepted() const { return world_.drafts_accepted; }

  private:
    uint32_t between(uint32_t low, uint32_t high) {
        return std::uniform_int_distribution<uint32_t>(low, high)(random_);
    }
    bool one_in(uint32_t n) { return between(1, n) == 1; }

    SchedulerConfig make_config() {
        SchedulerConfig config;
        config.batch = between(1, 6);
        config.prefill = one_in(3) ? between(1, 8) : between(1, 100);
        config.max_context = between(2, 300);
        const uint32_t pages_each = (config.max_context + kPageTokens - 1) / kPageTokens;
        config.pages = one_in(8) ? between(1, pages_each)
                                 : between(pages_each, pages_each * (one_in(3) ? 3 : 1) + 2);
        config.spec = one_in(4) ? 0 : between(1, kSpecMax);
        config.batch_mtp = config.spec > 0 && !one_in(4);
        const uint32_t gather_min =
            config.batch_mtp ? config.batch * (config.spec + 1) : config.batch + config.spec;
        config.gather_max = gather_min + (one_in(2) ? 0 : between(1, 40));
        config.prefix_cache = !one_in(5);
        if (one_in(10)) config.waiting_max = 2;
        if (one_in(2)) config.state_checkpoints = between(1, 6);
        return config;
    }

    void submit() {
        // Prompts share beginnings of any length; some are equal.
        std::vector<int32_t> prompt = make_prompt(between(1, 3), between(0, prompt_max_));
        if (!one_in(3)) {
            for (uint32_t i = between(0, 40); i > 0; --i) {
                prompt.push_back(static_cast<int32_t>(between(0, kVocab - 1)));
            }
        }
        if (prompt.empty()) prompt.push_back(1);
        SamplingParams params = greedy(one_in(8) ? 0 : between(1, 120));
        if (one_in(4)) {
            params.temperature = 0.8;
            params.seed = between(0, 5);
            params.choice = between(0, 3);
            params.repetition_penalty = one_in(2) ? 1.3 : 1.0;
            params.frequency_penalty = one_in(2) ? 0.5 : 0.0;
        }
        for (uint32_t i = one_in(3) ? between(1, 2) : 0; i > 0; --i) {
            params.stop_ids.push_back(static_cast<int32_t>(between(0, kVocab - 1)));
        }
        params.min_tokens = std::min(params.max_tokens, one_in(3) ? between(0, 20) : 0);
        params.ignore_eos = one_in(6);
        if (one_in(3)) params.logprobs = static_cast<int32_t>(between(0, 5));
        if (one_in(5)) params.prompt_logprobs = static_cast<int32_t>(between(0, 5));
        world_.may_draft = !one_in(6);
        const uint32_t credit = one_in(4) ? between(0, 40) : 0xFFFF'FFFF;
        const uint32_t resumed = one_in(4) ? between(0, 30) : 0;
        world_.submit(std::move(prompt), params, credit, one_in(4) ? between(0, 2) : 0, resumed);
    }

    // A live request, or 0.
    uint64_t any_live() {
        std::vector<uint64_t> live;
        for (const auto& [rid, tracked] : world_.requests) {
            if (tracked.is_live()) live.push_back(rid);
        }
        return live.empty() ? 0 : live[between(0, static_cast<uint32_t>(live.size()) - 1)];
    }

    void cancel_any() {
        if (const uint64_t rid = any_live()) world_.cancel(rid);
    }

    void raise_any_credit() {
        if (const uint64_t rid = any_live()) world_.credit(rid, between(0, 60));
    }

    // Nothing to do is right only while somebody waits for credit.
    void unblock() {
        bool is_somebody_held = world_.scheduler.is_empty();
        for (const auto& [rid, tracked] : world_.requests) {
            if (!tracked.is_held()) continue;
            is_somebody_held = true;
            world_.credit(rid, 0xFFFF'FFFF);
        }
        CHECK(is_somebody_held, "stuck", world_.scheduler.running_count());
    }

    std::mt19937_64 random_;
    World world_;
    bool may_fault_ = false;
    uint32_t prompt_max_ = 1;
};

TEST(random_schedules) {
    uint64_t preemptions = 0;
    uint64_t cached_tokens = 0;
    uint64_t verified = 0;
    uint64_t accepted = 0;
    uint64_t cached_with_states = 0;
    for (uint64_t seed = 1; seed <= 2000; ++seed) {
        try {
            Schedule schedule(seed);
            schedule.run();
            preemptions += schedule.preemptions();
            (schedule.has_states() ? cached_with_states : cached_tokens) +=
                schedule.cached_tokens();
            verified += schedule.drafts_verified();
            accepted += schedule.drafts_accepted();
        } catch (const Failed& failure) {
            throw Failed("seed " + std::to_string(seed) + ": " + failure.what());
        }
    }
    // The seeds must reach what they are there to test.
    CHECK(preemptions > 100, preemptions);
    CHECK(cached_tokens > 12'000, cached_tokens);
    CHECK(cached_with_states > 5'000, cached_with_states);
    CHECK(verified > 100'000, verified);
    CHECK(accepted > 50'000 && accepted < verified, accepted);
}

}  // namespace strata::testing

CHECK_MAIN
