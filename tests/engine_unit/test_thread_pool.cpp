// The compute threads under a thread sanitizer: every item once, results visible to the caller,
// pools that stop while their workers spin, yield or sleep.
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/base/thread_pool.h"
#include "tests/engine_unit/check.h"

namespace strata {
namespace {

// Each item writes a value that depends on the run; the caller reads all of them without a lock.
struct Job {
    std::vector<uint32_t> values;
    uint32_t run = 0;
};

void fill(void* context, uint32_t begin, uint32_t end, uint32_t) {
    Job& job = *static_cast<Job*>(context);
    for (uint32_t item = begin; item < end; ++item) job.values[item] += job.run + item;
}

TEST(every_item_of_every_run_once) {
    for (const uint32_t threads : {1u, 2u, 4u}) {
        ThreadPool pool(threads);
        CHECK(pool.size() == threads, pool.size());
        Job job;
        job.values.assign(37, 0);
        uint32_t runs = 0;
        for (const uint32_t chunk : {1u, 2u, 5u, 36u, 37u, 100u}) {
            for (uint32_t i = 0; i < 500; ++i) {
                job.run = 3;
                pool.run(37, chunk, fill, &job);
                ++runs;
            }
        }
        for (uint32_t item = 0; item < 37; ++item)
            CHECK(job.values[item] == runs * (3 + item), threads, item, job.values[item]);
    }
}

// Jobs of changing size and context back to back: a late worker must never mix two jobs.
TEST(jobs_do_not_mix) {
    ThreadPool pool(4);
    std::vector<Job> jobs(8);
    for (uint32_t i = 0; i < jobs.size(); ++i) jobs[i].values.assign(1 + 5 * i, 0);
    for (uint32_t round = 0; round < 2000; ++round) {
        Job& job = jobs[round % jobs.size()];
        job.run = round;
        const auto items = static_cast<uint32_t>(job.values.size());
        for (uint32_t& value : job.values) value = 0;
        pool.run(items, 1, fill, &job);
        for (uint32_t item = 0; item < items; ++item)
            CHECK(job.values[item] == round + item, round, item, job.values[item]);
    }
}

struct ThreadsSeen {
    std::vector<uint32_t> of_item;
};

TEST(thread_index_is_below_the_size) {
    ThreadPool pool(3);
    ThreadsSeen seen;
    seen.of_item.assign(200, 99);
    for (uint32_t i = 0; i < 100; ++i) {
        pool.run(
            200,
            1,
            [](void* context, uint32_t begin, uint32_t end, uint32_t thread) {
                auto& all = static_cast<ThreadsSeen*>(context)->of_item;
                for (uint32_t item = begin; item < end; ++item) all[item] = thread;
            },
            &seen);
        for (const uint32_t thread : seen.of_item) CHECK(thread < 3, thread);
    }
}

TEST(pools_start_and_stop) {
    for (uint32_t i = 0; i < 50; ++i) {
        ThreadPool pool(1 + i % 4);
        Job job;
        job.values.assign(8, 0);
        if (i % 3 != 0) pool.run(8, 1, fill, &job);
    }
}

// A slow chunk makes the caller and the idle workers pass through all stages of waiting.
TEST(slow_chunks_put_others_to_sleep) {
    ThreadPool pool(3);
    for (uint32_t slow = 0; slow < 6; ++slow) {
        struct Slow {
            uint32_t item;
            std::vector<uint32_t> done;
        } job{slow, std::vector<uint32_t>(6, 0)};
        pool.run(
            6,
            1,
            [](void* context, uint32_t begin, uint32_t, uint32_t) {
                auto* work = static_cast<Slow*>(context);
                const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
                while (begin == work->item && std::chrono::steady_clock::now() < until) {
                    std::this_thread::yield();
                }
                work->done[begin] = 1;
            },
            &job);
        for (const uint32_t done : job.done) CHECK(done == 1, slow);
    }
}

}  // namespace
}  // namespace strata

CHECK_MAIN
