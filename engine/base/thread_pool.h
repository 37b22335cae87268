// The compute threads of a step. Work is a range of independent items that threads claim in chunks
// from one counter, so a thread that lost its processor delays only the chunk it holds. Results
// never depend on who computed what. No allocation and no lock per run.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace strata {

class ThreadPool {
  public:
    // Computes items [begin, end); `thread` < size() is the index of the calling thread, for its
    // scratch memory. Must not throw.
    using Fn = void (*)(void* context, uint32_t begin, uint32_t end, uint32_t thread);

    // `threads` >= 1 counts the thread that calls run(), so threads - 1 are started.
    explicit ThreadPool(uint32_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    uint32_t size() const { return static_cast<uint32_t>(workers_.size()) + 1; }

    // Calls `fn` on all of [0, items) in chunks of at most `chunk` >= 1 items and returns when all
    // are done. One caller at a time, always the same thread; not from within `fn`. A single chunk
    // runs on the caller alone.
    void run(uint32_t items, uint32_t chunk, Fn fn, void* context) noexcept;

  private:
    void worker(uint32_t thread);
    void work(uint32_t epoch, uint32_t thread);
    bool await_epoch(uint32_t seen);
    void await_done(uint32_t items);

    // Epoch of the job (high half) and its next unclaimed item (low half). kClosed in the low half
    // means that the job is over and the four fields below may change. The caller of run() opens
    // and closes, every thread claims by compare-exchange: a claim succeeds only in the epoch whose
    // fields it read, because the fields change only after the word has changed.
    std::atomic<uint64_t> state_;
    std::atomic<uint32_t> items_{0};
    std::atomic<uint32_t> chunk_{1};
    std::atomic<Fn> fn_{nullptr};
    std::atomic<void*> context_{nullptr};

    // Items finished; added to by whoever computed them, awaited by the caller of run().
    alignas(64) std::atomic<uint32_t> done_{0};
    std::atomic<bool> caller_sleeps_{false};

    // Workers that sleep or are about to; wake_ is the word they sleep on.
    alignas(64) std::atomic<uint32_t> sleepers_{0};
    std::atomic<uint32_t> wake_{0};
    std::atomic<bool> is_stopping_{false};

    std::vector<std::thread> workers_;
};

}  // namespace strata
