#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace deepinfer {
namespace {

TEST(ThreadPool, RangesTileTheWork) {
    for (int threads : {1, 2, 3, 7}) {
        ThreadPool pool(threads);
        EXPECT_EQ(pool.num_threads(), threads);
        for (int64_t n : {0, 1, 2, 6, 7, 8, 100, 1000}) {
            std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
            pool.parallel_for(n, 1, [&](int64_t begin, int64_t end) {
                EXPECT_LT(begin, end);
                for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)].fetch_add(1);
            });
            for (const std::atomic<int>& s : seen) ASSERT_EQ(s.load(), 1);
        }
    }
}

TEST(ThreadPool, AffinityGivesEveryThreadItsCore) {
    cpu_set_t allowed;
    ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    const int cores = CPU_COUNT(&allowed);
    if (cores < 2) GTEST_SKIP() << "NOT RUN: one core alone";
    const auto masks = [](const char* value, int threads) {
        setenv("DEEPINFER_AFFINITY", value, 1);
        std::vector<std::vector<int>> out;
        // A thread of its own as the caller: it stays pinned.
        std::thread caller([&] {
            ThreadPool pool(threads);
            std::mutex mutex;
            pool.parallel_for(threads, 1, [&](int64_t, int64_t) {
                cpu_set_t set;
                ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
                std::vector<int> mine;
                for (int c = 0; c < CPU_SETSIZE; ++c) {
                    if (CPU_ISSET(c, &set)) mine.push_back(c);
                }
                std::lock_guard<std::mutex> lock(mutex);
                out.push_back(mine);
            });
        });
        caller.join();
        unsetenv("DEEPINFER_AFFINITY");
        std::sort(out.begin(), out.end());
        return out;
    };
    const auto pinned = masks("1", 2);
    ASSERT_EQ(pinned.size(), 2u);
    EXPECT_EQ(pinned[0].size(), 1u);
    EXPECT_EQ(pinned[1].size(), 1u);
    EXPECT_NE(pinned[0], pinned[1]);
    for (const auto& mine : masks("0", 2)) EXPECT_EQ(mine.size(), static_cast<size_t>(cores));
    // More threads than cores: nobody is pinned (a backend refuses this before).
    for (const auto& mine : masks("1", cores + 1))
        EXPECT_EQ(mine.size(), static_cast<size_t>(cores));
}

TEST(ThreadPool, GrainKeepsSmallWorkTogether) {
    ThreadPool pool(4);
    std::mutex mutex;
    std::vector<std::pair<int64_t, int64_t>> ranges;
    const auto note = [&](int64_t begin, int64_t end) {
        std::lock_guard<std::mutex> lock(mutex);
        ranges.push_back({begin, end});
    };
    pool.parallel_for(10, 100, note);
    EXPECT_EQ(ranges, (std::vector<std::pair<int64_t, int64_t>>{{0, 10}}));
    ranges.clear();
    pool.parallel_for(10, 4, note);
    EXPECT_EQ(ranges.size(), 2u);
    for (const auto& r : ranges) EXPECT_GE(r.second - r.first, 4);
}

TEST(ThreadPool, TheSplitRepeats) {
    ThreadPool pool(3);
    const auto split = [&] {
        std::mutex mutex;
        std::vector<int64_t> begins;
        pool.parallel_for(101, 1, [&](int64_t begin, int64_t) {
            std::lock_guard<std::mutex> lock(mutex);
            begins.push_back(begin);
        });
        std::sort(begins.begin(), begins.end());
        return begins;
    };
    const std::vector<int64_t> first = split();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(split(), first);
}

TEST(ThreadPool, NestedCallsRunSerially) {
    ThreadPool pool(2);
    std::atomic<int> count{0};
    pool.parallel_for(4, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const std::thread::id outer = std::this_thread::get_id();
            pool.parallel_for(5, 1, [&](int64_t b, int64_t e) {
                EXPECT_EQ(std::this_thread::get_id(), outer);
                count += static_cast<int>(e - b);
            });
        }
    });
    EXPECT_EQ(count.load(), 20);
}

// Short jobs back to back are where a lost wake-up or a stale job would show.
TEST(ThreadPool, ManyShortJobs) {
    ThreadPool pool(3);
    std::atomic<int64_t> sum{0};
    for (int i = 0; i < 2000; ++i) {
        pool.parallel_for(3, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
        if (i % 500 == 0)
            std::this_thread::sleep_for(
                std::chrono::milliseconds(2));  // lets the workers fall asleep
    }
    EXPECT_EQ(sum.load(), 6000);
}

TEST(ThreadPool, CallersOnSeveralThreadsTakeTurns) {
    ThreadPool pool(2);
    std::atomic<int64_t> sum{0};
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c) {
        callers.emplace_back([&] {
            for (int i = 0; i < 100; ++i)
                pool.parallel_for(10, 1, [&](int64_t b, int64_t e) { sum += e - b; });
        });
    }
    for (std::thread& t : callers) t.join();
    EXPECT_EQ(sum.load(), 3000);
}

TEST(ThreadPool, AtLeastOneThreadIsAvailable) {
    EXPECT_GE(ThreadPool::available_threads(), 1);
    EXPECT_EQ(ThreadPool(0).num_threads(), 1);
}

}  // namespace
}  // namespace deepinfer
