#include "engine/base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "engine/base/assert.h"
#include "engine/base/crash_handler.h"

namespace strata {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kClosed = 0xffffffffu;
constexpr uint32_t kItemsMax = 0x40000000u;  // next item plus chunk stays below kClosed

// Waiting goes through three stages: spinning catches the next operation of the same step, yielding
// gives the time slice to a neighbour that may hold our chunk, sleeping costs nothing at all.
constexpr auto kSpinTime = std::chrono::microseconds(25);
constexpr auto kYieldTime = std::chrono::microseconds(60);

uint64_t pack(uint32_t epoch, uint32_t next) {
    return (static_cast<uint64_t>(epoch) << 32) | next;
}
uint32_t epoch_of(uint64_t state) {
    return static_cast<uint32_t>(state >> 32);
}
uint32_t next_of(uint64_t state) {
    return static_cast<uint32_t>(state);
}

void pause_processor() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// True as soon as `is_over` holds, false when it is time to sleep.
template <class Predicate>
bool spin_then_yield(Predicate is_over) {
    if (is_over()) return true;
    const Clock::time_point begin = Clock::now();
    while (true) {
        for (int i = 0; i < 16; ++i) {
            if (is_over()) return true;
            pause_processor();
        }
        const auto waited = Clock::now() - begin;
        if (waited > kYieldTime) return is_over();
        if (waited > kSpinTime) std::this_thread::yield();
    }
}

}  // namespace

ThreadPool::ThreadPool(uint32_t threads) : state_(pack(0, kClosed)) {
    STRATA_ASSERT(threads >= 1, "a pool has at least its caller");
    workers_.reserve(threads - 1);
    for (uint32_t thread = 1; thread < threads; ++thread)
        workers_.emplace_back([this, thread] { worker(thread); });
}

ThreadPool::~ThreadPool() {
    is_stopping_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
    for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run(uint32_t items, uint32_t chunk, Fn fn, void* context) noexcept {
    STRATA_ASSERT(chunk >= 1 && items <= kItemsMax, "a chunk has an item, items stay below 2^30");
    if (items == 0) return;
    if (workers_.empty() || items <= chunk) {
        fn(context, 0, items, 0);
        return;
    }
    // Release, so that a worker which reads one of these also sees the closed word before them.
    items_.store(items, std::memory_order_release);
    chunk_.store(std::min(chunk, items), std::memory_order_release);
    fn_.store(fn, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    done_.store(0, std::memory_order_release);
    const uint32_t epoch = epoch_of(state_.load(std::memory_order_relaxed)) + 1;
    state_.store(pack(epoch, 0));
    // Either this load sees the sleeper, or the sleeper's later look at state_ sees the new epoch.
    if (sleepers_.load() > 0) {
        wake_.fetch_add(1);
        wake_.notify_all();
    }
    work(epoch, 0);
    await_done(items);
    state_.store(pack(epoch, kClosed));
}

// Claims and computes chunks of the job `epoch` until none is left.
void ThreadPool::work(uint32_t epoch, uint32_t thread) {
    uint64_t state = state_.load(std::memory_order_acquire);
    while (true) {
        const uint32_t items = items_.load(std::memory_order_acquire);
        const uint32_t chunk = chunk_.load(std::memory_order_acquire);
        const uint32_t begin = next_of(state);
        if (epoch_of(state) != epoch || begin >= items) return;
        const uint32_t end = begin + std::min(chunk, items - begin);
        if (!state_.compare_exchange_weak(state, pack(epoch, end), std::memory_order_acq_rel))
            continue;
        // The claim holds the job open, so the fields are this job's.
        const Fn fn = fn_.load(std::memory_order_acquire);
        fn(context_.load(std::memory_order_acquire), begin, end, thread);
        const uint32_t done = done_.fetch_add(end - begin) + (end - begin);
        if (done == items && caller_sleeps_.load()) done_.notify_one();
        state = state_.load(std::memory_order_acquire);
    }
}

void ThreadPool::worker(uint32_t thread) {
    register_thread("worker-" + std::to_string(thread));
    uint32_t seen = 0;
    while (await_epoch(seen)) {
        seen = epoch_of(state_.load(std::memory_order_acquire));
        work(seen, thread);
    }
}

// Waits for a job after `seen`; false when the pool stops.
bool ThreadPool::await_epoch(uint32_t seen) {
    const auto has_job = [&] {
        return epoch_of(state_.load()) != seen || is_stopping_.load(std::memory_order_relaxed);
    };
    while (!spin_then_yield(has_job)) {
        sleepers_.fetch_add(1);
        const uint32_t ticket = wake_.load();
        if (!has_job()) wake_.wait(ticket);
        sleepers_.fetch_sub(1);
    }
    return !is_stopping_.load();
}

void ThreadPool::await_done(uint32_t items) {
    const auto is_done = [&] { return done_.load(std::memory_order_acquire) == items; };
    if (spin_then_yield(is_done)) return;
    caller_sleeps_.store(true);
    for (uint32_t done = done_.load(); done != items; done = done_.load()) done_.wait(done);
    caller_sleeps_.store(false);
}

}  // namespace strata
