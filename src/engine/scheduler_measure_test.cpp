// The bench of the engine without its model: every combination is measured, numbers add up, and
// wrong options are refused.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "deepinfer/scheduler_bench.h"

namespace deepinfer {
namespace {

TEST(SchedulerBench, MeasuresEveryCombination) {
    SchedulerBenchOptions o;
    o.running = {1, 5};
    o.windows = 3;
    o.window_steps = 20;
    o.vocab_size = 300;
    std::set<std::string> seen;
    const Status s = run_scheduler_bench(o, [&](const SchedulerMeasurement& m) {
        seen.insert(std::to_string(m.running) + " " + m.loop + " " + m.sampling);
        EXPECT_GT(m.min_step_us, 0);
        EXPECT_LE(m.min_step_us, m.step_us);
        EXPECT_LE(m.sample_us, m.step_us);
        EXPECT_GT(m.step_cpu_us, 0);
        EXPECT_EQ(m.sample_us > 0, m.sampling != "none");
        return true;
    });
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(seen.size(), 2u * 2u * 3u);
}

TEST(SchedulerBench, StopsWhenTold) {
    SchedulerBenchOptions o;
    o.running = {2};
    o.windows = 1;
    o.window_steps = 4;
    int calls = 0;
    EXPECT_TRUE(
        run_scheduler_bench(o, [&](const SchedulerMeasurement&) { return ++calls < 2; }).ok());
    EXPECT_EQ(calls, 2);
}

TEST(SchedulerBench, WrongNumbersAreRefusedByName) {
    const auto refused = [](SchedulerBenchOptions o) {
        return run_scheduler_bench(o, [](const SchedulerMeasurement&) { return true; }).message();
    };
    SchedulerBenchOptions o;
    o.running = {0};
    EXPECT_EQ(refused(o), "running is 0, expected 1 to 4096");
    o = {};
    o.window_steps = 0;
    EXPECT_EQ(refused(o), "window_steps is 0, expected 1 to 100000");
    o = {};
    o.vocab_size = 3;
    EXPECT_NE(refused(o).find("vocab_size is 3"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
