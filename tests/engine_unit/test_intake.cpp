// Messages that any peer could send, most of them wrong: none reaches an assertion, and each rid
// that was opened is closed by exactly one DONE.
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "engine/loop/intake.h"
#include "engine/loop/step_runner.h"
#include "tests/engine_unit/check.h"
#include "tests/engine_unit/hash_runtime.h"

namespace strata::testing {

namespace {

constexpr uint32_t kVocab = 23;

SchedulerConfig config() {
    SchedulerConfig out;
    out.batch = 3;
    out.prefill = 16;
    out.max_context = 120;
    out.pages = 8;
    out.gather_max = 8;
    out.waiting_max = 20;
    return out;
}

class Peer {
  public:
    explicit Peer(uint64_t seed)
        : random_(seed),
          runtime_(kVocab, 8, 19, 8),
          scheduler_(config()),
          intake_(scheduler_, kVocab, serving_modes({})),
          runner_(runtime_) {}

    void run() {
        for (int i = 0; i < 200; ++i) {
            send_any();
            take_effects();
            step();
        }
        const std::set<uint64_t> left = open_;
        for (const uint64_t rid : left) {
            intake_.cancel(rid, now_us_, effects_);
            take_effects();
        }
        CHECK(open_.empty() && scheduler_.is_empty() && intake_.is_empty());
        CHECK(scheduler_.pages().used_count() == 0);
    }

    uint64_t completed() const { return completed_; }
    uint64_t refused() const { return refused_; }

  private:
    uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
    bool one_in(uint32_t n) { return below(n) == 0; }

    uint32_t any_count(uint32_t usual) {
        if (!one_in(12)) return below(usual);
        constexpr uint32_t kOdd[] = {0, 1, 0x7FFF'FFFF, 0x8000'0000, 0xFFFF'FFFE, 0xFFFF'FFFF};
        return kOdd[below(6)];
    }
    double any_number(double usual) {
        if (!one_in(12)) return usual;
        constexpr double kOdd[] = {0, -1, 1e308, -1e308, 1e-320, 2, 1.0000001};
        const uint32_t which = below(9);
        if (which == 7) return std::nan("");
        if (which == 8) return std::numeric_limits<double>::infinity();
        return kOdd[which];
    }
    std::vector<int32_t> any_ids(uint32_t count) {
        std::vector<int32_t> out(below(count + 1));
        for (int32_t& id : out) id = static_cast<int32_t>(below(one_in(400) ? 1000 : kVocab));
        return out;
    }

    protocol::SamplingParams any_params() {
        protocol::SamplingParams params;
        params.max_tokens = any_count(40);
        params.min_tokens = one_in(4) ? any_count(10) : 0;
        params.temperature = any_number(one_in(2) ? 0.0 : 0.9);
        params.top_k = one_in(4) ? any_count(30) : 0;
        params.top_p = any_number(0.9);
        params.min_p = any_number(0.05);
        params.typical_p = any_number(0.95);
        params.repetition_penalty = any_number(1.1);
        params.presence_penalty = any_number(0.5);
        params.frequency_penalty = any_number(-0.5);
        for (uint32_t i = below(3); one_in(4) && i > 0; --i) {
            params.logit_bias.push_back({static_cast<int32_t>(below(kVocab + 1)), any_number(5)});
        }
        for (const int32_t id : any_ids(one_in(4) ? 3 : 0)) params.stop_ids.push_back(id);
        params.logprobs = one_in(3) ? static_cast<int32_t>(any_count(6)) : -1;
        params.prompt_logprobs = one_in(5) ? static_cast<int32_t>(any_count(6)) : -1;
        params.choice = any_count(4);
        params.seed = random_();
        return params;
    }

    void send_any() {
        const uint64_t rid = below(30);
        switch (below(6)) {
            case 0:
            case 1: {
                protocol::Submit message;
                message.rid = rid;
                message.ids = any_ids(60);
                message.prompt_tokens = prompt_length(message.ids);
                message.params = any_params();
                message.credit = one_in(3) ? any_count(10) : 0xFFFF'FFFF;
                message.priority = static_cast<int32_t>(any_count(3));
                open_.insert(rid);
                intake_.submit(std::move(message), now_us_, effects_);
                break;
            }
            case 2: {
                protocol::Resume message;
                message.rid = rid;
                message.ids = any_ids(60);
                message.generated = any_ids(20);
                message.prompt_tokens = prompt_length(message.ids);
                message.params = any_params();
                open_.insert(rid);
                intake_.resume(std::move(message), now_us_, effects_);
                break;
            }
            case 3:
                // Often right: the rest of a prompt that was left incomplete by 3.
                intake_.prompt({rid, any_count(60), any_ids(4)}, now_us_, effects_);
                break;
            case 4:
                intake_.cancel(rid, now_us_, effects_);
                break;
            default:
                intake_.credit(rid, any_count(50));
        }
    }
    uint32_t prompt_length(const std::vector<int32_t>& ids) {
        if (one_in(10)) return any_count(200);
        return static_cast<uint32_t>(ids.size()) + (one_in(5) ? 3 : 0);
    }

    void step() {
        now_us_ += 100;
        const Step& step = scheduler_.plan(now_us_);
        if (step.rows.rows == 0) return;
        scheduler_.complete(runner_.run(step), now_us_, effects_);
        take_effects();
    }

    void take_effects() {
        for (const TokenEffect& effect : effects_.tokens) CHECK(open_.contains(effect.rid));
        for (const PromptLogprobEffect& e : effects_.prompt_logprobs) CHECK(open_.contains(e.rid));
        for (const protocol::Done& done : effects_.done) {
            CHECK(open_.erase(done.rid) == 1, done.rid, done.code);
            CHECK((done.reason == protocol::FinishReason::Error) == done.error_kind.has_value());
            CHECK(!done.error_kind || (!done.code.empty() && !done.text.empty()), done.code);
            (done.error_kind ? refused_ : completed_) += 1;
        }
        effects_.clear();
    }

    std::mt19937_64 random_;
    HashRuntime runtime_;
    Scheduler scheduler_;
    Intake intake_;
    StepRunner runner_;
    Effects effects_;
    std::set<uint64_t> open_;
    uint64_t now_us_ = 1;
    uint64_t completed_ = 0;
    uint64_t refused_ = 0;
};

}  // namespace

TEST(whatever_a_peer_sends_each_request_ends_once) {
    uint64_t completed = 0;
    uint64_t refused = 0;
    for (uint64_t seed = 1; seed <= 300; ++seed) {
        Peer peer(seed);
        try {
            peer.run();
        } catch (const Failed& failure) {
            throw Failed("seed " + std::to_string(seed) + ": " + failure.what());
        }
        completed += peer.completed();
        refused += peer.refused();
    }
    CHECK(completed > 3000, completed);
    CHECK(refused > 3000, refused);
}

TEST(draining_refuses_what_is_new_and_completes_what_has_begun) {
    HashRuntime runtime(kVocab, 8, 19, 8);
    Scheduler scheduler(config());
    Intake intake(scheduler, kVocab, serving_modes({}));
    Effects effects;
    protocol::Submit begun;
    begun.rid = 1;
    begun.ids = {1, 2};
    begun.prompt_tokens = 3;
    intake.submit(protocol::Submit(begun), 1, effects);
    intake.drain();
    begun.rid = 2;
    intake.submit(protocol::Submit(begun), 1, effects);
    CHECK(effects.done.size() == 1 && effects.done[0].code == "engine_draining");
    CHECK(effects.done[0].error_kind == ErrorKind::Overloaded);
    intake.prompt({1, 2, {3}}, 1, effects);
    CHECK(effects.done.size() == 1 && scheduler.has(1) && intake.is_empty());
}

TEST(a_request_that_needs_an_unstated_feature_is_refused_by_its_field) {
    HashRuntime runtime(kVocab, 8, 19, 8);
    // Each feature is left out in turn, with a request that asks for it by its field alone.
    const auto ask = [](std::string_view name, protocol::SamplingParams& params) {
        if (name == "sampling") params.temperature = 0.5;
        if (name == "top_k") params.top_k = 1;
        if (name == "top_p") params.top_p = 0.5;
        if (name == "min_p") params.min_p = 0.5;
        if (name == "typical_p") params.typical_p = 0.5;
        if (name == "penalties") params.frequency_penalty = 0.5;
        if (name == "logit_bias") params.logit_bias = {{1, 1.0}};
        if (name == "min_tokens") params.min_tokens = 1;
        if (name == "ignore_eos") params.ignore_eos = true;
        if (name == "choices") params.choice = 1;
        if (name == "logprobs") params.logprobs = 0;
        if (name == "prompt_logprobs") params.prompt_logprobs = 0;
    };
    for (const RequestFeature& left_out : decode_features()) {
        std::vector<RequestFeature> stated;
        for (const RequestFeature& feature : decode_features())
            if (feature.name != left_out.name) stated.push_back(feature);
        Scheduler scheduler(config());
        Intake intake(scheduler, kVocab, {{0, stated}});
        Effects effects;
        protocol::Submit message;
        message.ids = {1, 2};
        message.prompt_tokens = 2;
        message.params.temperature = 0;
        message.rid = 1;
        intake.submit(protocol::Submit(message), 1, effects);
        CHECK(effects.done.empty() && scheduler.has(1), std::string(left_out.name));
        message.rid = 2;
        ask(left_out.name, message.params);
        intake.submit(protocol::Submit(message), 1, effects);
        CHECK(effects.done.size() == 1 && !scheduler.has(2), std::string(left_out.name));
        CHECK(effects.done[0].error_kind == ErrorKind::Unsupported);
        CHECK(effects.done[0].code == "mode_unsupported", effects.done[0].code);
        CHECK(effects.done[0].text.find(left_out.name) != std::string::npos, effects.done[0].text);
    }
}

TEST(a_request_is_held_to_the_mode_that_it_names) {
    HashRuntime runtime(kVocab, 8, 19, 8);
    std::vector<RequestFeature> features(decode_features().begin(), decode_features().end());
    for (RequestFeature& feature : features) {
        feature.with_drafts = feature.name != "penalties";
    }
    ModePlan plan;
    plan.spec = 3;
    const std::vector<ServingMode> modes = serving_modes(plan, features);
    CHECK(modes.size() == 2 && modes[0].drafts == 3 && modes[1].drafts == 0);
    CHECK(modes[0].features.size() + 1 == features.size());
    CHECK(modes[1].features.size() == features.size());
    // Where drafts serve everything, nothing needs to go without; without drafts there is one way.
    CHECK(serving_modes(plan, modes[0].features).size() == 1);
    CHECK(serving_modes({}, features).size() == 1 && serving_modes({}, features)[0].drafts == 0);

    Scheduler scheduler(config());
    Intake intake(scheduler, kVocab, modes);
    Effects effects;
    protocol::Submit message;
    message.ids = {1, 2};
    message.prompt_tokens = 2;
    message.params.temperature = 0;
    message.rid = 1;
    intake.submit(protocol::Submit(message), 1, effects);
    CHECK(effects.done.empty() && scheduler.has(1));
    message.params.presence_penalty = 0.5;
    message.rid = 2;
    intake.submit(protocol::Submit(message), 1, effects);
    CHECK(effects.done.size() == 1 && effects.done[0].code == "mode_unsupported");
    message.rid = 3;
    message.mode = 1;
    intake.submit(protocol::Submit(message), 1, effects);
    CHECK(effects.done.size() == 1 && scheduler.has(3));
    message.rid = 4;
    message.mode = 2;
    intake.submit(protocol::Submit(message), 1, effects);
    CHECK(effects.done.size() == 2 && effects.done[1].code == "request.mode", effects.done[1].code);
}

}  // namespace strata::testing

CHECK_MAIN
