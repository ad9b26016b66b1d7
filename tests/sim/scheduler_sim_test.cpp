// Laws of the scheduler under random load: every request gets exactly the tokens of its own prefix
// hash, in order, whatever is admitted, preempted, aborted or found in the cache around it.
#include <gtest/gtest.h>

#include "sim/sim_world.h"

namespace deepinfer::sim {
namespace {

struct Case {
    const char* name;
    WorldConfig config;
};

WorldConfig base(uint64_t seed) {
    WorldConfig c;
    c.seed = seed;
    return c;
}

std::vector<Case> cases() {
    std::vector<Case> all;
    all.push_back({"roomy", base(11)});
    all.back().config.num_blocks = 400;
    all.push_back({"tight_pool", base(12)});
    all.back().config.num_blocks = 14;
    all.push_back({"one_block_more_than_one_sequence", base(13)});
    all.back().config.num_blocks = 10;
    all.back().config.max_model_len = 144;
    all.push_back({"tiny_budget", base(14)});
    all.back().config.max_num_batched_tokens = 3;
    all.push_back({"huge_budget", base(15)});
    all.back().config.max_num_batched_tokens = 4096;
    all.push_back({"threshold", base(16)});
    all.back().config.threshold = 5;
    all.push_back({"overload", base(17)});
    all.back().config.arrivals_per_step = 1.5;
    all.push_back({"many_aborts", base(18)});
    all.back().config.abort_share = 0.6;
    all.push_back({"forced_preemption", base(19)});
    all.back().config.preempt_share = 0.05;
    all.back().config.max_num_batched_tokens = 256;
    all.push_back({"siblings", base(20)});
    all.back().config.siblings_share = 0.9;
    all.back().config.num_blocks = 20;
    all.push_back({"all_constrained", base(21)});
    all.back().config.constrained_share = 1.0;
    all.push_back({"one_slot", base(22)});
    all.back().config.max_num_seqs = 1;
    return all;
}

class SchedulerSimRandom : public testing::TestWithParam<std::tuple<size_t, bool, bool>> {};

TEST_P(SchedulerSimRandom, EveryRequestGetsItsOwnTokens) {
    const auto [at, async, caching] = GetParam();
    WorldConfig c = cases()[at].config;
    c.steps = 2200;  // times 12 cases and four modes: 10^5 steps
    c.async = async;
    c.prefix_caching = caching;
    SimWorld world(c);
    EXPECT_EQ(world.run(), "");
    EXPECT_GT(world.finished().size(), 100u);
}

std::string case_name(const testing::TestParamInfo<std::tuple<size_t, bool, bool>>& info) {
    return std::string(cases()[std::get<0>(info.param)].name) +
           (std::get<1>(info.param) ? "_async" : "_plain") +
           (std::get<2>(info.param) ? "_cached" : "_uncached");
}

INSTANTIATE_TEST_SUITE_P(Load,
                         SchedulerSimRandom,
                         testing::Combine(testing::Range<size_t>(0, cases().size()),
                                          testing::Bool(),
                                          testing::Bool()),
                         case_name);

TEST_P(SchedulerSimRandom, DraftsChangeNoToken) {
    const auto [at, async, caching] = GetParam();
    int64_t accepted = 0;
    for (const auto& [nextn, share] : {std::pair(1, 0.9), std::pair(5, 0.7)}) {
        WorldConfig c = cases()[at].config;
        c.steps = 200;
        c.async = async;
        c.prefix_caching = caching;
        c.nextn = nextn;
        c.accept_share = share;
        c.varlen = nextn == 5;
        SimWorld world(c);
        EXPECT_EQ(world.run(), "");
        EXPECT_GT(world.finished().size(), 20u);
        accepted += world.executor().drafts_accepted;
    }
    EXPECT_GT(accepted, 40);
}

TEST(SchedulerSim, MemoryPressureReallyPreempts) {
    WorldConfig c = base(31);
    c.num_blocks = 14;
    c.arrivals_per_step = 1.0;
    c.steps = 3000;
    SimWorld world(c);
    EXPECT_EQ(world.run(), "");
    EXPECT_GT(world.stats().preemptions, 20);
}

TEST(SchedulerSim, PredictedLengthStopsWasteNoRow) {
    WorldConfig c = base(32);
    c.with_stops = false;
    c.abort_share = 0;
    c.constrained_share = 0;
    c.async = true;
    c.num_blocks = 400;
    SimWorld world(c);
    EXPECT_EQ(world.run(), "");
    EXPECT_GT(world.stats().output_tokens, 1000);
    EXPECT_EQ(world.stats().zombie_tokens, 0);
}

TEST(SchedulerSim, LengthStopsWasteNoRowWithDraftsEither) {
    for (const double share : {0.0, 0.5, 1.0}) {
        WorldConfig c = base(36);
        c.with_stops = false;
        c.abort_share = 0;
        c.async = true;
        c.num_blocks = 400;
        c.nextn = 4;
        c.accept_share = share;
        SimWorld world(c);
        EXPECT_EQ(world.run(), "");
        EXPECT_GT(world.stats().output_tokens, 1000);
        EXPECT_EQ(world.stats().zombie_tokens, 0);
        if (share == 1.0) {
            EXPECT_EQ(world.executor().drafts_accepted, world.stats().draft_rows);
        }
    }
}

TEST(SchedulerSim, DraftsSaveSteps) {
    WorldConfig c = base(37);
    c.abort_share = 0;
    c.num_blocks = 400;
    c.async = true;
    SimWorld plain(c);
    EXPECT_EQ(plain.run(), "");
    c.nextn = 5;
    c.accept_share = 0.9;
    SimWorld drafts(c);
    EXPECT_EQ(drafts.run(), "");
    EXPECT_LT(drafts.stats().decode_tokens * 2, plain.stats().decode_tokens);
}

TEST(SchedulerSim, AsyncLoopGivesTheTokensOfThePlainLoop) {
    WorldConfig c = base(33);
    c.abort_share = 0;  // an abort's moment differs by a step, all else must not
    c.num_blocks = 20;
    c.preempt_share = 0.01;
    SimWorld plain(c);
    EXPECT_EQ(plain.run(), "");
    c.async = true;
    SimWorld async(c);
    EXPECT_EQ(async.run(), "");
    EXPECT_EQ(plain.finished(), async.finished());
    EXPECT_GT(async.stats().zombie_tokens, 0);
}

TEST(SchedulerSim, ThreadedExecutorGivesTheSameTokens) {
    WorldConfig c = base(34);
    c.async = true;
    c.num_blocks = 20;
    c.steps = 600;
    SimWorld direct(c);
    EXPECT_EQ(direct.run(), "");
    c.threaded = true;
    SimWorld threaded(c);
    EXPECT_EQ(threaded.run(), "");
    EXPECT_EQ(direct.finished(), threaded.finished());
    c.nextn = 3;
    c.constrained_share = 0.5;
    SimWorld drafts(c);
    EXPECT_EQ(drafts.run(), "");
    c.threaded = false;
    SimWorld direct_drafts(c);
    EXPECT_EQ(direct_drafts.run(), "");
    EXPECT_EQ(direct_drafts.finished(), drafts.finished());
}

class PlansRepeat : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Drafts, PlansRepeat, testing::Values(0, 3));

TEST_P(PlansRepeat, AndReplay) {
    WorldConfig c = base(35);
    c.nextn = GetParam();
    c.async = true;
    c.keep_plans = true;
    c.constrained_share = 0;
    c.steps = 300;
    SimWorld first(c), second(c);
    EXPECT_EQ(first.run(), "");
    EXPECT_EQ(second.run(), "");
    const auto& plans = first.executor().plans;
    ASSERT_EQ(plans.size(), second.executor().plans.size());
    FakeMemoryShape shape;
    shape.num_blocks = c.num_blocks;
    shape.num_slots = c.max_num_seqs;
    shape.ring_len = shape.window + std::max(4, 2 * (1 + c.nextn));
    FakeExecutor replay(shape);
    for (size_t i = 0; i < plans.size(); ++i) {
        EXPECT_TRUE(*plans[i] == *second.executor().plans[i]) << plans[i]->to_json();
        replay.launch(plans[i]);
        replay.collect();
    }
    EXPECT_EQ(replay.fault, "");
}

}  // namespace
}  // namespace deepinfer::sim
