// Single rules of the scheduler, one plan at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/plain_block_space.h"
#include "engine/scheduler.h"
#include "kvcache/replay.h"
#include "model/prefill_truncation.h"
#include "sim/sim_model.h"

namespace deepinfer::sim {
namespace {

/// A scheduler whose steps are answered by hand: every sampled row gives token 2.
class Desk final : public ScheduleSink {
  public:
    explicit Desk(int64_t num_blocks = 64, int64_t budget = 32, int64_t max_num_seqs = 4)
        : blocks_(make_plain_block_space(num_blocks, 16)) {
        SchedulerConfig c;
        c.max_num_seqs = c.max_logit_rows = max_num_seqs;
        c.max_num_batched_tokens = budget;
        c.max_model_len = std::min<int64_t>(num_blocks * 16, 512);
        c.prefix_caching = false;
        c.chunk_align = 2;
        c.eos_token_id = kEos;
        c.replay_geometry.window = 8;
        c.replay_geometry.num_layers = 1;
        scheduler = std::make_unique<Scheduler>(c, *blocks_, clock_);
    }

    uint64_t submit(int64_t prompt, int64_t new_tokens, int32_t n = 1) {
        SamplingParams p;
        p.max_tokens = new_tokens;
        p.n = n;
        std::vector<SequenceSpec> specs(static_cast<size_t>(n));
        ++last_;
        for (int32_t i = 0; i < n; ++i) {
            SequenceSpec& spec = specs[static_cast<size_t>(i)];
            spec.request = last_;
            spec.index = i;
            spec.sampling = std::make_shared<const SamplingParams>(p);
            spec.prompt.assign(static_cast<size_t>(prompt), 5);
        }
        scheduler->add(std::move(specs));
        return last_;
    }

    std::shared_ptr<const StepPlan> step() {
        const auto plan = scheduler->plan_step();
        if (plan->empty()) return plan;
        StepResult r;
        r.step = plan->step;
        for (const ChunkPlan& c : plan->chunks) {
            ChunkResult one;
            one.slot = c.slot;
            one.epoch = c.epoch;
            one.start_pos = c.start_pos;
            one.num_rows = c.num_rows();
            if (c.sample) one.tokens.push_back({2, false, {}});
            r.chunks.push_back(one);
        }
        scheduler->finish_step(r, *this);
        scheduler->check_invariants();
        return plan;
    }

    FinishReason on_token(const Sequence&, const SampledToken&, FinishReason reason) override {
        return reason;
    }
    void on_prefill(const Sequence&, const ChunkResult&) override {}
    void on_ended(const Sequence&, FinishReason) override {}

    std::unique_ptr<Scheduler> scheduler;

  private:
    std::unique_ptr<BlockSpace> blocks_;
    VirtualClock clock_;
    uint64_t last_ = 0;
};

TEST(SchedulerRules, DecodesGoFirstAndTheBudgetIsKept) {
    Desk desk;
    desk.submit(4, 20);
    desk.step();
    desk.submit(100, 4);
    const auto plan = desk.step();
    ASSERT_EQ(plan->chunks.size(), 2u);
    EXPECT_TRUE(plan->chunks[0].decode);
    EXPECT_FALSE(plan->chunks[1].sample);
    EXPECT_LE(plan->num_rows(), 32);
    EXPECT_EQ(plan->num_decode_rows, 1);
    for (int i = 0; i < 40; ++i) EXPECT_LE(desk.step()->num_rows(), 32);
    EXPECT_FALSE(desk.scheduler->has_unfinished());
}

TEST(SchedulerRules, ChunksEndAtBlocksThenAtCompressionGroups) {
    Desk desk(64, 37);
    desk.submit(200, 2);
    EXPECT_EQ(desk.step()->chunks[0].num_rows(), 32);  // two blocks of 16
    Desk narrow(64, 7);
    narrow.submit(200, 2);
    EXPECT_EQ(narrow.step()->chunks[0].num_rows(), 6);  // three pairs
    Desk single(64, 1);
    single.submit(5, 1);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(single.step()->num_rows(), 1);
    EXPECT_FALSE(single.scheduler->has_unfinished());
}

TEST(SchedulerRules, WhatCanNeverFitSaysWhy) {
    Desk desk(4);  // 64 tokens
    SamplingParams p;
    p.max_tokens = 10;
    const Status status = desk.scheduler->check_fits(60, p);
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_NE(status.message().find("60"), std::string::npos);
    EXPECT_NE(status.message().find("64"), std::string::npos);
    EXPECT_NE(status.message().find("can never fit"), std::string::npos);
    EXPECT_TRUE(desk.scheduler->check_fits(54, p).ok());
    p.max_tokens.reset();
    EXPECT_TRUE(desk.scheduler->check_fits(63, p).ok());
    EXPECT_FALSE(desk.scheduler->check_fits(64, p).ok());
    p.max_tokens = std::numeric_limits<int64_t>::max();
    EXPECT_FALSE(desk.scheduler->check_fits(1, p).ok());
}

TEST(SchedulerRules, TheLatestIsPreemptedUnlessItIsAlmostDone) {
    // Three sequences fill a pool of 12 blocks; the first one's growth needs a victim.
    Desk desk(12, 32, 4);
    const uint64_t first = desk.submit(30, 100);
    desk.submit(30, 100);
    desk.submit(30, 100);
    (void)first;
    int64_t preempted = 0;
    for (int i = 0; i < 1000 && desk.scheduler->has_unfinished(); ++i) {
        preempted += desk.step()->num_preempted;
    }
    EXPECT_FALSE(desk.scheduler->has_unfinished());
    EXPECT_EQ(preempted, desk.scheduler->stats().preemptions);
    EXPECT_EQ(desk.scheduler->stats().output_tokens, 300);
}

TEST(SchedulerRules, MoreDecodesThanTheBudgetTakeTurns) {
    Desk desk(64, 2, 4);
    desk.submit(3, 30, 4);  // siblings start together, however small the budget
    desk.step();
    std::vector<int> rows(4, 0);
    for (int i = 0; i < 40; ++i) {
        const auto plan = desk.step();
        for (const ChunkPlan& c : plan->chunks) ++rows[static_cast<size_t>(c.slot)];
    }
    for (const int n : rows) EXPECT_GE(n, 15);
}

TEST(SchedulerRules, PlansPrintAsJsonAndCompare) {
    Desk a, b;
    a.submit(20, 3);
    b.submit(20, 3);
    const auto plan = a.step();
    EXPECT_TRUE(*plan == *b.step());
    const auto j = nlohmann::json::parse(plan->to_json());
    EXPECT_EQ(j["step"], 1);
    EXPECT_EQ(j["chunks"][0]["rows"], 20);
    EXPECT_EQ(j["chunks"][0]["tokens"].size(), 20u);
    EXPECT_EQ(j["starts"][0]["request"], 1);
    EXPECT_FALSE(*plan == *a.step());
}

/// Rows times layers that a prompt takes from `start` on. Layers above the last kv source take the
/// rows that truncation leaves them; the last source's attention goes with those above it.
int64_t row_layers(const PrefillTruncation& t, int64_t prompt, int64_t start) {
    int64_t sum = 0;
    for (int layer = 0; layer < t.num_layers; ++layer) {
        sum += prompt - std::max(start, t.first_row(t.level_into(layer), prompt));
    }
    return sum;
}

TEST(SchedulerRules, AReplayNeverTakesMoreRowsThanTheColdRun) {
    // What a hit costs is counted, not measured: rows by layers, from the plan alone. A replay runs
    // a part of the cold run's rows through the same layers, so the hit is taken whenever a replay
    // exists; the same tokens follow either way.
    for (const TruncationMode mode :
         {TruncationMode::kOff, TruncationMode::kExact, TruncationMode::kCompact}) {
        for (const ReplayKind kind : {ReplayKind::kBounded, ReplayKind::kExact}) {
            PrefillTruncation t;
            t.mode = mode;
            t.window = 16;
            t.num_layers = 9;
            t.mid = 5;
            t.keep = 28;
            ReplayGeometry g;
            g.window = t.window;
            g.num_layers = t.num_layers;
            g.mid = t.mid;
            g.backtrack = 12;
            int taken = 0;
            for (int64_t prompt = 1; prompt < 700; prompt += 3) {
                for (int64_t hit = 16; hit <= prompt; hit += 16) {
                    const auto plan =
                        mode == TruncationMode::kOff
                            ? plan_replay(kind, g, prompt, hit)
                            : plan_replay_from(kind, g, prompt - t.decoder_rows(prompt), hit);
                    if (!plan) continue;
                    ++taken;
                    EXPECT_GT(plan->start, 0);
                    EXPECT_LE(plan->start, hit);
                    EXPECT_LT(row_layers(t, prompt, plan->start), row_layers(t, prompt, 0))
                        << prompt << " " << hit;
                }
            }
            EXPECT_GT(taken, 1000);
        }
    }
}

}  // namespace
}  // namespace deepinfer::sim
