// The scheduler's promises one by one; test_scheduler_random.cpp mixes them.
#include "tests/engine_unit/scheduler_world.h"

namespace strata::testing {

namespace {

SchedulerConfig roomy() {
    SchedulerConfig config;
    config.batch = 4;
    config.prefill = 64;
    config.max_context = 512;
    config.pages = 64;
    config.gather_max = 4;
    return config;
}

const protocol::Done& done(const World& world, uint64_t rid) {
    const auto& all = world.requests.at(rid).done;
    CHECK(all.size() == 1, rid);
    return all.front();
}

// Greedy parameters whose answer ends by length only.
SamplingParams endless(uint32_t max_tokens) {
    SamplingParams params = greedy(max_tokens);
    params.ignore_eos = true;
    return params;
}

}  // namespace

TEST(decodes_share_each_step_with_prompts) {
    World world(roomy());
    std::vector<uint64_t> early;
    for (uint64_t i = 0; i < 3; ++i) early.push_back(world.submit(make_prompt(i, 5), endless(100)));
    world.step();
    const uint64_t late = world.submit(make_prompt(9, 300), endless(3));
    for (int step = 0; step < 5; ++step) {  // 300 prompt tokens in chunks of 64
        const size_t before = world.requests.at(early[0]).delivered.size();
        CHECK(world.requests.at(late).delivered.empty());
        world.step();
        CHECK(world.step_rows.back() == (step < 4 ? 64u : 44u) + 3, step, world.step_rows.back());
        for (const uint64_t rid : early) {
            CHECK(world.requests.at(rid).delivered.size() == before + 1, rid, step);
        }
    }
    CHECK(world.requests.at(late).delivered.size() == 1);
    world.run();
    world.check_empty();
}

TEST(equal_prompts_are_computed_once) {
    World world(roomy());
    for (int i = 0; i < 4; ++i) world.submit(make_prompt(1, 100), endless(1));
    world.run();
    world.check_empty();
    // 100 rows for the first; 3 whole pages are shared, so 4 rows for each of the others.
    CHECK(world.rows_total() == 100 + 3 * 4, world.rows_total());
    CHECK(world.scheduler.totals().cached_tokens == 3 * 96);
    CHECK(done(world, 4).cached_tokens == 96);
}

TEST(a_whole_known_prompt_still_computes_its_last_token) {
    World world(roomy());
    for (int i = 0; i < 2; ++i) {
        world.submit(make_prompt(1, 64), endless(4));
        world.run();
    }
    CHECK(done(world, 2).cached_tokens == 32, done(world, 2).cached_tokens);
    world.check_empty();
}

TEST(generated_tokens_are_reused) {
    World world(roomy());
    world.submit(make_prompt(1, 30), endless(40));
    world.run();
    std::vector<int32_t> next_turn = world.requests.at(1).prompt;
    const auto& answer = world.requests.at(1).delivered;
    next_turn.insert(next_turn.end(), answer.begin(), answer.end());
    world.submit(next_turn, endless(2));
    world.run();
    CHECK(done(world, 2).cached_tokens == 64, done(world, 2).cached_tokens);
}

TEST(cancel_takes_effect_before_the_next_step) {
    World world(roomy());
    const uint64_t stays = world.submit(make_prompt(1, 10), endless(20));
    const uint64_t goes = world.submit(make_prompt(2, 10), endless(20));
    world.step();
    world.cancel(goes);  // the world refuses any further token of it
    world.scheduler.cancel(stays + 1000, world.now_us, world.effects);  // unknown: ignored
    world.run();
    CHECK(done(world, goes).reason == protocol::FinishReason::Cancelled);
    CHECK(done(world, goes).output_tokens == 1);
    CHECK(done(world, stays).output_tokens == 20);
    world.check_empty();
}

TEST(credit_pauses_only_its_own_sequence) {
    World world(roomy());
    const uint64_t slow = world.submit(make_prompt(1, 40), endless(20), 3);
    const uint64_t fast = world.submit(make_prompt(2, 40), endless(20));
    world.run();
    CHECK(done(world, fast).output_tokens == 20);
    CHECK(world.requests.at(slow).is_live() && world.requests.at(slow).delivered.size() == 3);
    CHECK(world.scheduler.pages().used_count() == 2, "the paused sequence keeps its KV");
    const uint64_t rows_before = world.rows_total();
    world.credit(slow, 2);  // late duplicate
    CHECK(!world.step());
    world.credit(slow, 20);
    world.run();
    CHECK(world.rows_total() == rows_before + 17, "nothing is computed twice");
    world.check_empty();
}

TEST(no_credit_at_all_still_prefills) {
    World world(roomy());
    const uint64_t rid = world.submit(make_prompt(1, 50), endless(2), 0);
    world.run();
    CHECK(world.rows_total() == 49, world.rows_total());
    world.credit(rid, 2);
    world.run();
    CHECK(world.rows_total() == 51, world.rows_total());
    world.check_empty();
}

TEST(nobody_waits_for_a_page_that_a_held_sequence_will_not_fill) {
    World world(roomy());
    const uint64_t held = world.submit(make_prompt(1, 64), endless(5), 0);
    const uint64_t free = world.submit(make_prompt(1, 100), endless(5));
    world.run();
    CHECK(done(world, free).output_tokens == 5);
    CHECK(world.requests.at(held).is_live());
    world.credit(held, 5);
    world.run();
    world.check_empty();
}

TEST(sequences_out_of_credit_give_their_places_to_those_that_wait) {
    SchedulerConfig config = roomy();
    config.batch = 2;
    World world(config);
    const uint64_t held[] = {world.submit(make_prompt(1, 40), endless(30), 3),
                             world.submit(make_prompt(2, 70), endless(30), 5)};
    world.run();
    const uint64_t next[] = {world.submit(make_prompt(3, 40), endless(20)),
                             world.submit(make_prompt(4, 40), endless(20)),
                             world.submit(make_prompt(5, 40), endless(20))};
    world.run();
    for (const uint64_t rid : next) CHECK(done(world, rid).output_tokens == 20, rid);
    for (const uint64_t rid : held) CHECK(world.requests.at(rid).is_live(), rid);
    world.credit(held[1], 30);
    world.run();
    CHECK(done(world, held[1]).output_tokens == 30);
    world.credit(held[0], 30);
    world.run();
    CHECK(done(world, held[0]).output_tokens == 30);
    world.check_empty();
}

TEST(a_parked_sequence_can_be_cancelled) {
    SchedulerConfig config = roomy();
    config.batch = 1;
    World world(config);
    const uint64_t held = world.submit(make_prompt(1, 40), endless(30), 3);
    world.run();
    const uint64_t next = world.submit(make_prompt(2, 40), endless(5));
    world.run();
    CHECK(done(world, next).output_tokens == 5);
    world.cancel(held);
    world.run();
    CHECK(done(world, held).reason == protocol::FinishReason::Cancelled);
    world.check_empty();
}

TEST(scoring_needs_no_credit) {
    World world(roomy());
    SamplingParams params = endless(0);
    params.prompt_logprobs = 0;
    const uint64_t rid = world.submit(make_prompt(1, 40), params, 0);
    world.run();
    CHECK(world.requests.at(rid).scored.size() == 39);
    world.check_empty();
}

TEST(preemption_takes_the_youngest_and_is_not_seen) {
    SchedulerConfig config = roomy();
    config.max_context = 160;
    config.pages = 8;
    World world(config);
    for (uint64_t i = 0; i < 4; ++i) world.submit(make_prompt(i, 20), endless(120));
    world.run();
    world.check_empty();
    CHECK(world.scheduler.totals().preemptions > 0);
    for (uint64_t rid = 1; rid <= 4; ++rid) CHECK(done(world, rid).output_tokens == 120, rid);
}

TEST(priority_then_arrival) {
    SchedulerConfig config = roomy();
    config.batch = 1;
    config.gather_max = 1;
    World world(config);
    world.submit(make_prompt(1, 5), endless(1));
    world.submit(make_prompt(2, 5), endless(1));
    world.submit(make_prompt(3, 5), endless(1), 0xFFFF'FFFF, 5);
    world.step();
    CHECK(!world.requests.at(3).is_live() && world.requests.at(1).is_live());
    world.step();
    CHECK(!world.requests.at(1).is_live() && world.requests.at(2).is_live());
    world.run();
    world.check_empty();
}

TEST(what_can_never_fit_is_refused_with_numbers) {
    SchedulerConfig config = roomy();
    config.pages = 3;  // 96 tokens, less than max_context
    World world(config);
    world.submit(make_prompt(1, 96), endless(1));
    CHECK(done(world, 1).code == "context_length_exceeded");
    CHECK(done(world, 1).error_kind == ErrorKind::InvalidRequest);
    CHECK(done(world, 1).text.find("96") != std::string::npos, done(world, 1).text);
    world.submit(make_prompt(1, 95), endless(1000));
    world.run();
    CHECK(done(world, 2).reason == protocol::FinishReason::Length);
    CHECK(done(world, 2).output_tokens == 1);
    world.check_empty();
}

TEST(a_full_queue_is_overloaded) {
    SchedulerConfig config = roomy();
    config.waiting_max = 2;
    World world(config);
    for (uint64_t i = 0; i < 3; ++i) world.submit(make_prompt(i, 5), endless(1));
    CHECK(done(world, 3).code == "engine_queue_full");
    CHECK(done(world, 3).error_kind == ErrorKind::Overloaded);
    world.run();
    world.check_empty();
}

TEST(a_resumed_request_goes_on_as_it_would_have) {
    World world(roomy());
    SamplingParams params = endless(40);
    params.temperature = 0.9;
    params.seed = 7;
    params.frequency_penalty = 0.7;
    params.repetition_penalty = 1.2;
    const uint64_t rid = world.submit(make_prompt(1, 50), params, 0xFFFF'FFFF, 0, 25);
    world.run();
    CHECK(done(world, rid).output_tokens == 40);
    const uint64_t finished = world.submit(make_prompt(1, 50), params, 0xFFFF'FFFF, 0, 40);
    CHECK(done(world, finished).reason == protocol::FinishReason::Length);
    world.check_empty();
}

TEST(stop_ids) {
    World world(roomy());
    World plain(roomy());
    plain.submit(make_prompt(1, 20), endless(10));
    plain.run();
    const std::vector<int32_t> free_run = plain.requests.at(1).delivered;
    SamplingParams params = greedy(10);
    params.stop_ids = {free_run[4]};
    const uint64_t stops = world.submit(make_prompt(1, 20), params);
    params.ignore_eos = true;
    const uint64_t ignores = world.submit(make_prompt(1, 20), params);
    params.ignore_eos = false;
    params.min_tokens = 8;
    const uint64_t later = world.submit(make_prompt(1, 20), params);
    world.run();
    CHECK(done(world, stops).reason == protocol::FinishReason::Stop);
    CHECK(done(world, stops).stop_id == free_run[4]);
    CHECK(world.requests.at(stops).delivered.size() <= 4, "the stop id is not delivered");
    CHECK(world.requests.at(ignores).delivered == free_run);
    CHECK(done(world, later).output_tokens >= 8);
}

TEST(scoring_a_prompt_generates_nothing) {
    World world(roomy());
    world.submit(make_prompt(1, 100), endless(5));
    world.run();
    SamplingParams params = endless(0);
    params.prompt_logprobs = 3;
    const uint64_t rid = world.submit(make_prompt(1, 100), params);
    world.run();
    CHECK(done(world, rid).reason == protocol::FinishReason::Length);
    CHECK(done(world, rid).output_tokens == 0 && done(world, rid).cached_tokens == 0);
    CHECK(world.requests.at(rid).scored.size() == 99);
    world.check_empty();
}

TEST(a_numeric_fault_ends_its_sequence_and_leaves_no_bad_page) {
    World world(roomy());
    const uint64_t bystander = world.submit(make_prompt(1, 40), endless(30));
    world.step();
    world.runtime.poison_every = 1;  // from here every history is bad
    World::expect_fault(world.requests.at(bystander));
    const uint64_t victim = world.submit(make_prompt(2, 80), endless(5));
    world.run();
    CHECK(done(world, victim).error_kind == ErrorKind::NumericFault);
    CHECK(done(world, victim).code == "numeric_fault", done(world, victim).code);
    CHECK(world.scheduler.pages().idle_count() == 0, "nothing of a bad history may be reused");
    world.runtime.poison_every = 0;
    const uint64_t again = world.submit(make_prompt(2, 80), endless(5));
    world.run();
    CHECK(done(world, again).cached_tokens == 0);
    CHECK(done(world, again).output_tokens == 5);
    world.check_empty();
}

TEST(a_failed_step_ends_the_sequences_in_it_and_no_other) {
    SchedulerConfig config = roomy();
    config.batch = 2;
    config.gather_max = 2;
    World world(config);
    for (uint64_t i = 0; i < 3; ++i) world.submit(make_prompt(i, 10), endless(5));
    world.runtime.fault_next = true;
    world.step();
    CHECK(done(world, 1).code == "test.step" && done(world, 2).code == "test.step");
    world.run();
    CHECK(done(world, 3).output_tokens == 5);
    world.check_empty();
}

}  // namespace strata::testing

CHECK_MAIN
