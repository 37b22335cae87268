// Scheduler and step runner keep the promise of the step path: admission of a request may allocate,
// a step may not, whether it computes prompts or decodes, fills pages or ends sequences. Every
// operator new of the program is counted; the executor has its own test (test_cpu_runtime.cpp).
#include <vector>

#include "engine/loop/resident.h"
#include "engine/loop/scheduler.h"
#include "engine/loop/step_runner.h"
#include "tests/engine_unit/check.h"
#include "tests/engine_unit/count_allocations.h"
#include "tests/engine_unit/hash_runtime.h"

namespace strata::testing {

namespace {

constexpr uint32_t kVocab = 23;
constexpr uint32_t kBatch = 4;
constexpr uint32_t kPrefill = 16;
constexpr uint32_t kPrompt = 70;   // more than two pages, several steps
constexpr uint32_t kOutput = 100;  // crosses page borders while decoding

struct Counts {
    uint64_t steps = 0;
    uint64_t tokens = 0;
    uint64_t scores = 0;
    uint64_t done = 0;
    uint64_t admission = 0;    // allocations of submit and of the step that admits
    uint64_t allocations = 0;  // of all other steps
};

class Engine {
  public:
    explicit Engine(bool prefix_cache)
        : config_{kBatch, kPrefill, 256, 64, kBatch + kPrefill, prefix_cache},
          runtime_(kVocab, config_.pages, kBatch + kPrefill, config_.gather_max),
          scheduler_(config_),
          runner_(runtime_) {}

    // One wave of kBatch requests from SUBMIT to DONE.
    Counts serve(const SamplingParams& params) {
        Counts counts;
        uint64_t before = allocations.load();
        for (uint32_t i = 0; i < kBatch; ++i) submit(params);
        bool is_admission = true;
        while (true) {
            const Step& step = scheduler_.plan(++now_us_);
            if (step.rows.rows == 0) break;
            scheduler_.complete(runner_.run(step), ++now_us_, effects_);
            counts.tokens += effects_.tokens.size();
            counts.scores += effects_.prompt_logprobs.size();
            counts.done += effects_.done.size();
            effects_.clear();
            ++counts.steps;
            const uint64_t now = allocations.load();
            (is_admission ? counts.admission : counts.allocations) += now - before;
            before = now;
            is_admission = false;
        }
        return counts;
    }

  private:
    void submit(const SamplingParams& params) {
        std::vector<int32_t> tokens(kPrompt);
        for (uint32_t i = 0; i < kPrompt; ++i) {
            tokens[i] = static_cast<int32_t>((next_rid_ * 7 + i * 5) % kVocab);
        }
        SamplingState state(params, kVocab, tokens, params.max_tokens);
        Request request{
            next_rid_, next_rid_, 0, kPrompt, kOutput, 0, std::move(tokens), std::move(state)};
        ++next_rid_;
        scheduler_.submit(std::move(request), now_us_, effects_);
    }

    SchedulerConfig config_;
    HashRuntime runtime_;
    Scheduler scheduler_;
    StepRunner runner_;
    Effects effects_;
    uint64_t next_rid_ = 1;
    uint64_t now_us_ = 1;
};

void check_steady(const SamplingParams& params, bool prefix_cache) {
    Engine engine(prefix_cache);
    engine.serve(params);  // grows the effects to the size that a step needs
    const Counts counts = engine.serve(params);
    CHECK(counts.tokens == kBatch * kOutput && counts.done == kBatch, counts.tokens, counts.done);
    CHECK(counts.steps > kOutput, counts.steps);
    const uint64_t scores = params.prompt_logprobs >= 0 ? kBatch * (kPrompt - 1) : 0;
    CHECK(counts.scores == scores, counts.scores);
    CHECK(counts.admission > 0, "the counter counts");
    CHECK(counts.allocations == 0, counts.allocations, counts.steps);
}

SamplingParams params_of(double temperature) {
    SamplingParams params;
    params.temperature = temperature;
    params.max_tokens = kOutput;
    return params;
}

}  // namespace

TEST(greedy_steps_do_not_allocate) {
    check_steady(params_of(0), true);
    check_steady(params_of(0), false);
}

TEST(steps_with_every_sampling_filter_do_not_allocate) {
    SamplingParams params = params_of(0.8);
    params.top_k = 15;
    params.top_p = 0.95;
    params.min_p = 0.01;
    params.typical_p = 0.97;
    params.repetition_penalty = 1.1;
    params.presence_penalty = 0.2;
    params.frequency_penalty = 0.1;
    params.logit_bias = {{3, 0.5}};
    check_steady(params, true);
}

TEST(steps_with_logprobs_do_not_allocate) {
    SamplingParams params = params_of(1);
    params.logprobs = 20;
    params.prompt_logprobs = 5;
    check_steady(params, true);
}

TEST(reading_the_resident_set_does_not_allocate) {
    const ResidentMeter meter;
    const uint64_t before = allocations.load();
    const uint64_t first = meter.bytes();
    const uint64_t second = meter.bytes();  // the descriptor reads from its start again
    CHECK(allocations.load() == before);
#if defined(__linux__)
    CHECK(first > 100'000 && first < uint64_t{1} << 40, first);
    CHECK(second > 100'000 && second < uint64_t{1} << 40, second);
#else
    CHECK(first == 0 && second == 0);
#endif
}

}  // namespace strata::testing

CHECK_MAIN
