// The loop with its threads and real pipes around the hash model: nothing is lost or blocked when
// the peer does not read, faults of the runtime end what they must, draining ends.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "engine/loop/engine_loop.h"
#include "tests/engine_unit/check.h"
#include "tests/engine_unit/hash_runtime.h"

namespace strata::testing {

namespace {

using namespace std::chrono_literals;
using protocol::ToSupervisorMessage;

constexpr uint32_t kVocab = 23;

ModePlan plan_of(uint32_t batch, uint32_t max_context, uint32_t pages) {
    ModePlan plan;
    plan.batch = batch;
    plan.prefill = 64;
    plan.max_context = max_context;
    plan.kv_tokens = uint64_t{pages} * kPageTokens;
    return plan;
}

// A runtime that can fail on demand, on top of the hash model.
class FaultyRuntime final : public Runtime {
  public:
    explicit FaultyRuntime(const ModePlan& plan)
        : model_(kVocab, plan.pages(), plan.rows_max(), plan.rows_max()) {}
    void step(const RowView& rows) override {
        if (is_stopped) throw Error(ErrorKind::DeviceLost, "test.stop", "the test is over");
        if (fault) throw Error(*fault, "test.step", "told to fail");
        model_.step(rows);
    }
    float* logits(uint32_t index) override { return model_.logits(index); }
    uint32_t vocab() const override { return model_.vocab(); }
    uint32_t rows_max() const override { return model_.rows_max(); }
    uint32_t gather_max() const override { return model_.gather_max(); }
    std::optional<ErrorKind> fault;
    std::atomic<bool> is_stopped = false;  // written by the test, read by the compute thread

  private:
    HashRuntime model_;
};

// The supervisor's end of the pipes, and the engine with its loop on a thread.
class Setup {
  public:
    explicit Setup(const ModePlan& plan, std::optional<ErrorKind> fault = {})
        : plan_(plan), runtime_(plan) {
        runtime_.fault = fault;
        int commands[2];
        int events[2];
        CHECK(pipe(commands) == 0 && pipe(events) == 0);
        command_fd_ = commands[1];
        event_fd_ = events[0];
        channel_.emplace(commands[0], events[1], inbox_, vitals_);
        handshake();
        engine_ = std::thread([this] {
            EngineLoop loop(
                *channel_, inbox_, vitals_, beacon_, runtime_, plan_, protocol::Limits{});
            code_ = loop.run();
        });
    }
    // A check may have failed while the engine works, or waits for its events to be read.
    ~Setup() {
        runtime_.is_stopped = true;
        inbox_.request_drain();
        std::thread reader([this] {
            uint8_t bytes[65536];
            while (read(event_fd_, bytes, sizeof bytes) > 0) {
            }
        });
        if (engine_.joinable()) engine_.join();
        channel_.reset();  // closes the pipe that is read
        reader.join();
        close(command_fd_);
        close(event_fd_);
    }

    template <class T>
    void send(const T& message) {
        protocol::Buffer bytes;
        encode_frame(message, bytes);
        CHECK(write(command_fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    }

    ToSupervisorMessage receive() {
        while (true) {
            if (const auto frame = decoder_.next()) {
                return protocol::decode_to_supervisor(frame->payload);
            }
            uint8_t bytes[65536];
            pollfd wait = {event_fd_, POLLIN, 0};
            CHECK(poll(&wait, 1, 30'000) == 1, "the engine says nothing");
            const ssize_t count = read(event_fd_, bytes, sizeof bytes);
            CHECK(count > 0, "the engine is gone");
            decoder_.append({bytes, static_cast<size_t>(count)});
        }
    }

    template <class T>
    T receive_type() {
        while (true) {
            ToSupervisorMessage message = receive();
            if (auto* wanted = std::get_if<T>(&message)) return std::move(*wanted);
        }
    }

    // Files what comes until `count` requests are done.
    void receive_until_done(size_t count) {
        while (done_.size() < count) {
            ToSupervisorMessage message = receive();
            if (const auto* tokens = std::get_if<protocol::Tokens>(&message)) {
                for (const protocol::TokensItem& item : tokens->items) {
                    CHECK(!done_.contains(item.rid), item.rid);
                    CHECK(item.offset == output_[item.rid], item.rid, item.offset);
                    output_[item.rid] += static_cast<uint32_t>(item.ids.size());
                }
            } else if (auto* done = std::get_if<protocol::Done>(&message)) {
                CHECK(!done_.contains(done->rid), done->rid);
                done_[done->rid] = std::move(*done);
            }
        }
    }

    void drain() { inbox_.request_drain(); }
    protocol::ExitCode join() {
        engine_.join();
        return code_;
    }

    Channel& channel() { return *channel_; }
    uint64_t steps() const { return vitals_.step.load(); }
    std::map<uint64_t, uint32_t> output_;  // tokens received
    std::map<uint64_t, protocol::Done> done_;

  private:
    void handshake() {
        channel_->send(protocol::Hello{});
        protocol::Offer offer;
        offer.proto = 1;
        send(offer);
        await();
        channel_->send(protocol::Caps{});
        send(protocol::Plan{});
        await();
        channel_->send(protocol::Ready{});
    }
    void await() {
        std::vector<protocol::ToEngineMessage> messages;
        while (messages.empty()) {
            inbox_.wait(std::nullopt);
            inbox_.take(messages);
        }
    }

    ModePlan plan_;
    FaultyRuntime runtime_;
    Inbox inbox_;
    Vitals vitals_;
    Beacon beacon_;
    int command_fd_ = -1;
    int event_fd_ = -1;
    std::optional<Channel> channel_;
    protocol::FrameDecoder decoder_;
    protocol::ExitCode code_{};
    std::thread engine_;
};

// Joined also where a check fails. What it sends fits the inbox, so it always ends.
class JoinedThread {
  public:
    template <class Run>
    explicit JoinedThread(Run run) : thread_(std::move(run)) {}
    ~JoinedThread() { thread_.join(); }

  private:
    std::thread thread_;
};

// Until the event buffer has no room for a step's `step_bytes`, because nobody reads.
void fill_buffer(Setup& setup, size_t step_bytes) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (setup.channel().has_room(step_bytes)) {
        CHECK(std::chrono::steady_clock::now() < deadline, "the buffer does not fill");
        std::this_thread::yield();
    }
}

protocol::Submit request(uint64_t rid, uint32_t max_tokens, int32_t logprobs = -1) {
    protocol::Submit submit;
    submit.rid = rid;
    submit.ids = {static_cast<int32_t>(rid % kVocab), 1, 2};
    submit.prompt_tokens = 3;
    submit.params.temperature = 0;
    submit.params.max_tokens = max_tokens;
    submit.params.logprobs = logprobs;
    return submit;
}

}  // namespace

TEST(a_peer_that_does_not_read_pauses_the_sequences_and_loses_nothing) {
    constexpr uint32_t kBatch = 32;
    constexpr uint32_t kTokens = 1200;
    Setup setup(plan_of(kBatch, 1300, kBatch * 41));
    for (uint64_t rid = 1; rid <= kBatch; ++rid) setup.send(request(rid, kTokens, 20));
    // 32 x 1200 tokens with 20 alternatives are more than pipe and buffer hold.
    const size_t step_bytes = EventSender::step_bytes_max(kBatch, kBatch + 64);
    fill_buffer(setup, step_bytes);
    CHECK(setup.steps() < kTokens, "it stopped before the end");
    setup.send(protocol::Cancel{1});  // taken although nothing can be sent in bulk
    setup.receive_until_done(kBatch);
    CHECK(setup.done_[1].reason == protocol::FinishReason::Cancelled);
    for (uint64_t rid = 2; rid <= kBatch; ++rid) CHECK(setup.output_[rid] == kTokens, rid);
    setup.drain();
    CHECK(setup.join() == protocol::ExitCode::Ok);
}

TEST(a_test_that_ends_early_does_not_wait_for_the_engine) {
    constexpr uint32_t kBatch = 32;
    constexpr uint32_t kTokens = 4000;
    Setup setup(plan_of(kBatch, kTokens + 100, kBatch * 130));
    for (uint64_t rid = 1; rid <= kBatch; ++rid) setup.send(request(rid, kTokens, 20));
    fill_buffer(setup, EventSender::step_bytes_max(kBatch, kBatch + 64));
}

TEST(requests_come_and_go_from_another_thread) {
    Setup setup(plan_of(4, 200, 16));
    constexpr uint64_t kRequests = 300;
    const JoinedThread sender([&] {
        for (uint64_t rid = 1; rid <= kRequests; ++rid) {
            setup.send(request(rid, static_cast<uint32_t>(rid % 50 + 1)));
            if (rid % 3 == 0) setup.send(protocol::Cancel{rid - 1});
            if (rid % 7 == 0) setup.send(protocol::Ping{rid});
        }
        setup.send(protocol::Drain{});
    });
    setup.receive_until_done(kRequests);
    CHECK(setup.join() == protocol::ExitCode::Ok);
    for (uint64_t rid = 1; rid <= kRequests; ++rid) {
        const bool is_cancelled = setup.done_[rid].reason == protocol::FinishReason::Cancelled;
        CHECK(is_cancelled || setup.output_[rid] == rid % 50 + 1, rid);
        CHECK(setup.done_[rid].output_tokens == setup.output_[rid], rid);
    }
}

TEST(a_failed_step_ends_its_requests_only) {
    Setup setup(plan_of(2, 100, 8), ErrorKind::Internal);
    setup.send(request(1, 5));
    setup.send(request(2, 5));
    setup.receive_until_done(2);
    for (uint64_t rid = 1; rid <= 2; ++rid) {
        CHECK(setup.done_[rid].error_kind == ErrorKind::Internal);
        CHECK(setup.done_[rid].code == "test.step");
    }
    setup.send(protocol::Ping{9});
    CHECK(setup.receive_type<protocol::Pong>().nonce == 9);
    setup.drain();
    CHECK(setup.join() == protocol::ExitCode::Ok);
}

TEST(a_lost_device_ends_the_engine_with_last_words) {
    Setup setup(plan_of(2, 100, 8), ErrorKind::DeviceLost);
    setup.send(request(1, 5));
    bool has_done = false;
    std::optional<ErrorKind> kind;
    while (!kind) {
        const ToSupervisorMessage message = setup.receive();
        has_done = has_done || std::holds_alternative<protocol::Done>(message);
        if (const auto* dying = std::get_if<protocol::Dying>(&message)) kind = dying->error_kind;
    }
    CHECK(setup.join() == protocol::ExitCode::DeviceLost);
    CHECK(kind == ErrorKind::DeviceLost);
    CHECK(!has_done);  // another engine goes on with it
}

TEST(statistics_follow_the_work) {
    Setup setup(plan_of(2, 100, 8));
    setup.send(request(1, 20));
    protocol::Stats stats;
    do {
        stats = setup.receive_type<protocol::Stats>();
    } while (stats.running > 0);
    CHECK(stats.prompt_tokens == 3 && stats.output_tokens == 20);
    CHECK(stats.kv_pages_used == 0 && stats.kv_pages_total == 8);
    setup.drain();
    CHECK(setup.join() == protocol::ExitCode::Ok);
}

}  // namespace strata::testing

CHECK_MAIN
