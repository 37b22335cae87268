// What the Python tests of the sampler cannot see: that sampling never allocates, and the answer
// to a request that validation would have refused. Distribution and formulas: tests/unit.
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

#include "engine/decode/philox.h"
#include "engine/decode/sampler.h"
#include "tests/engine_unit/check.h"

namespace {

std::atomic<uint64_t> allocations{0};

}  // namespace

void* operator new(std::size_t bytes) {
    ++allocations;
    void* p = std::malloc(bytes == 0 ? 1 : bytes);
    if (p == nullptr) throw std::bad_alloc();
    return p;
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}

namespace strata::testing {
namespace {

constexpr uint32_t kVocab = 20'000;
constexpr uint32_t kTokens = 300;

std::vector<float> random_row(float spread) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> row(kVocab);
    for (float& x : row) x = normal(random);
    return row;
}

std::vector<SamplingParams> all_kinds() {
    std::vector<SamplingParams> kinds(8);
    kinds[0].temperature = 0;
    kinds[1].top_k = 40;
    kinds[2].top_k = 5000;
    kinds[3].top_p = 0.95;
    kinds[4].typical_p = 0.9;
    kinds[5].min_p = 0.01;
    kinds[6].temperature = 1000;
    for (SamplingParams& params : kinds) params.max_tokens = kTokens;
    SamplingParams& all = kinds[7];
    all.repetition_penalty = 1.1;
    all.presence_penalty = 0.5;
    all.frequency_penalty = 0.1;
    all.logit_bias = {{3, 1.0}, {4, -1.0}};
    all.stop_ids = {1, 2};
    all.min_tokens = 5;
    all.logprobs = 20;
    return kinds;
}

}  // namespace

TEST(sampling_never_allocates) {
    const std::vector<float> sharp = random_row(3);
    const std::vector<float> flat = random_row(0);
    Sampler sampler(kVocab);
    for (SamplingParams& params : all_kinds()) {
        CHECK(!validate(params, kVocab));
        const std::vector<int32_t> prompt(500, 7);
        SamplingState state(params, kVocab, prompt, kTokens);
        const uint64_t before = allocations;
        for (uint32_t i = 0; i < kTokens; ++i) {
            const std::vector<float>& row = i % 10 == 0 ? flat : sharp;
            const Sampled sampled = sampler.sample(row.data(), state, i);
            CHECK(sampled.fault == SampleFault::None);
            state.accept(static_cast<int32_t>((i * 7919) % kVocab));
        }
        sampler.score(sharp.data(), 1, 20);
        CHECK(allocations == before, allocations - before);
    }
}

TEST(no_candidate_is_a_value) {
    SamplingParams params;
    params.min_tokens = 1;
    params.stop_ids = {0, 1, 2};
    CHECK(validate(params, 3));
    const float row[] = {1, 2, 3};
    Sampler sampler(3);
    for (const double temperature : {0.0, 1.0}) {
        params.temperature = temperature;
        const SamplingState state(params, 3, {}, 4);
        CHECK(sampler.sample(row, state, 0).fault == SampleFault::NoCandidate);
        const Sampled later = sampler.sample(row, state, 1);
        CHECK(later.fault == SampleFault::None);
    }
}

TEST(top_count_is_cut_to_limit_and_vocabulary) {
    const std::vector<float> row = random_row(1);
    CHECK(Sampler(kVocab).score(row.data(), 0, 1000).logprob.top_count == kTopLogprobsMax);
    CHECK(Sampler(3).score(row.data(), 0, 20).logprob.top_count == 3);
}

TEST(philox_is_a_constant_expression) {
    static_assert(philox4x32({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5);
    static_assert(philox_uniform(1, 2, 3) < 1);
}

}  // namespace strata::testing

CHECK_MAIN
