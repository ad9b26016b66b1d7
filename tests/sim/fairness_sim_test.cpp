// Who gets served: tenants in equal shares, classes in order, and nobody never.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/plain_block_space.h"
#include "engine/scheduler.h"
#include "engine/step_loop.h"
#include "sim/fake_executor.h"

namespace deepinfer::sim {
namespace {

/// A scheduler under load that a test shapes; counts tokens per tenant and the order of ends.
class Market final : public ScheduleSink {
  public:
    explicit Market(int64_t max_num_seqs, int64_t age_us = 30'000'000)
        : blocks_(make_plain_block_space(4096, 16)) {
        FakeMemoryShape shape;
        shape.num_blocks = 4096;
        shape.num_slots = max_num_seqs;
        executor_ = std::make_unique<FakeExecutor>(shape);
        SchedulerConfig c;
        c.max_num_seqs = c.max_logit_rows = max_num_seqs;
        c.max_num_batched_tokens = 64;
        c.max_model_len = 1024;
        c.age_us = age_us;
        c.prefix_caching = false;
        c.replay_geometry.window = 8;
        c.replay_geometry.num_layers = 1;
        scheduler = std::make_unique<Scheduler>(c, *blocks_, clock);
        loop_ = make_plain_loop(*scheduler, *executor_, clock, {});
    }

    uint64_t submit(const std::string& tenant,
                    int64_t prompt,
                    int64_t new_tokens,
                    int priority = 0) {
        SamplingParams p;
        p.max_tokens = new_tokens;
        p.ignore_eos = true;
        SequenceSpec spec;
        spec.request = ++last_;
        spec.sampling = std::make_shared<const SamplingParams>(p);
        spec.tenant = tenant;
        spec.priority = priority;
        for (int64_t i = 0; i < prompt; ++i) {
            spec.prompt.push_back(
                static_cast<int32_t>(mix(last_ + static_cast<uint64_t>(i) * 77) % kVocab));
        }
        ++waiting[tenant];
        scheduler->add({std::move(spec)});
        return last_;
    }

    void step() {
        loop_->step(*this);
        clock.now += 10'000;
    }

    FinishReason on_token(const Sequence& seq, const SampledToken&, FinishReason reason) override {
        ++output[seq.spec.tenant];
        if (seq.num_output() == 1) service[seq.spec.tenant] += seq.prompt_len;
        service[seq.spec.tenant] += TenantCounters::kOutputWeight;
        if (reason != FinishReason::kNone) {
            --waiting[seq.spec.tenant];
            ended.push_back(seq.spec.request);
        }
        return reason;
    }
    void on_prefill(const Sequence&, const ChunkResult&) override {}
    void on_ended(const Sequence&, FinishReason) override {}

    VirtualClock clock;
    std::unique_ptr<Scheduler> scheduler;
    std::map<std::string, int64_t> output, service, waiting;
    std::vector<uint64_t> ended;

  private:
    std::unique_ptr<BlockSpace> blocks_;
    std::unique_ptr<FakeExecutor> executor_;
    std::unique_ptr<StepLoop> loop_;
    uint64_t last_ = 0;
};

TEST(Fairness, OneHeavyAndNineLightTenantsGetEqualService) {
    Market m(8);
    std::mt19937_64 random(3);
    for (int step = 0; step < 12000; ++step) {
        // The heavy tenant keeps 60 requests waiting, the light ones two: all could use more.
        while (m.waiting["heavy"] < 60)
            m.submit("heavy", 5 + static_cast<int64_t>(random() % 30), 20);
        for (int t = 0; t < 9; ++t) {
            const std::string name = "light" + std::to_string(t);
            while (m.waiting[name] < 2) m.submit(name, 5 + static_cast<int64_t>(random() % 30), 20);
        }
        m.step();
    }
    double sum = 0;
    for (const auto& [tenant, value] : m.service) sum += static_cast<double>(value);
    const double mean = sum / 10;
    for (const auto& [tenant, value] : m.service) {
        EXPECT_NEAR(static_cast<double>(value) / mean, 1.0, 0.10) << tenant;
    }
}

TEST(Fairness, UnequalSizesStillGetEqualService) {
    Market m(6);
    for (int step = 0; step < 8000; ++step) {
        while (m.waiting["long"] < 4) m.submit("long", 100, 60);
        while (m.waiting["short"] < 8) m.submit("short", 10, 6);
        m.step();
    }
    const double ratio =
        static_cast<double>(m.service["long"]) / static_cast<double>(m.service["short"]);
    EXPECT_NEAR(ratio, 1.0, 0.10);
}

TEST(Fairness, TimeAwayEarnsNoCredit) {
    Market m(4);
    for (int step = 0; step < 2000; ++step) {
        while (m.waiting["steady"] < 8) m.submit("steady", 10, 10);
        m.step();
    }
    // A newcomer does not get 2000 steps of service at once: from here on both share.
    m.service.clear();
    for (int step = 0; step < 2000; ++step) {
        while (m.waiting["steady"] < 8) m.submit("steady", 10, 10);
        while (m.waiting["late"] < 8) m.submit("late", 10, 10);
        m.step();
    }
    const double ratio =
        static_cast<double>(m.service["late"]) / static_cast<double>(m.service["steady"]);
    EXPECT_NEAR(ratio, 1.0, 0.10);
}

TEST(Fairness, SmallerPriorityGoesFirst) {
    Market m(1);
    m.submit("a", 4, 4, 0);
    m.step();  // runs already: never interrupted
    const uint64_t low = m.submit("a", 4, 4, 2);
    const uint64_t mid = m.submit("b", 4, 4, 1);
    const uint64_t high = m.submit("c", 4, 4, -1);
    while (m.scheduler->has_unfinished()) m.step();
    EXPECT_EQ(m.ended, (std::vector<uint64_t>{1, high, mid, low}));
}

TEST(Fairness, AgeingServesTheLowestClassUnderEndlessLoad) {
    Market m(2, /*age_us=*/1'000'000);
    const uint64_t low = m.submit("poor", 8, 8, 5);
    bool served = false;
    for (int step = 0; step < 3000 && !served; ++step) {
        while (m.waiting["rich"] < 6) m.submit("rich", 8, 8, 0);
        m.step();
        served = std::find(m.ended.begin(), m.ended.end(), low) != m.ended.end();
    }
    EXPECT_TRUE(served);
}

TEST(Fairness, IdleTenantsAreForgotten) {
    TenantCounters t;
    for (int i = 0; i < 1000; ++i) {
        const std::string name = "t" + std::to_string(i);
        t.enter(name);
        t.charge(name, 5);
        t.leave(name);
    }
    t.enter("x");
    t.charge("x", 100000);
    t.enter("y");
    t.leave("y");
    t.leave("x");
    EXPECT_LT(t.size(), 1001u);
    t.enter("back");  // at or above the floor of the active ones
    EXPECT_GE(t.value("back"), 0);
}

}  // namespace
}  // namespace deepinfer::sim
