// The off-switch against a machine and a drafter whose truth is known.
#include "engine/spec_switch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace deepinfer {
namespace {

double random_unit(std::mt19937_64& random) {
    return static_cast<double>(random() >> 11) * 0x1p-53;
}

/// Sequences decode on a machine where a step with drafts takes `dearer` times a plain one, with a
/// drafter of five drafts that gives gain · dearer tokens a step on average.
struct World {
    int64_t batch = 1;
    double gain = 1, dearer = 3;
    double noise = 0.05;     ///< of a step's time, standard deviation
    double outliers = 0;     ///< share of steps that take twelve times as long
    bool async = true;       ///< a step is planned before the one before it is known
    int64_t change_at = -1;  ///< from this step on …
    double gain_then = 1;    ///< … drafts give this
};

struct Outcome {
    double to_plain = 0;  ///< tokens per time, by plain decoding's
    int64_t last_off = -1, last_on = -1, steps_with = 0;
};

/// Chance of each draft with which five of them give `tokens` a step.
double chance_of(double tokens) {
    double lo = 0, hi = 1;
    for (int i = 0; i < 40; ++i) {
        const double p = (lo + hi) / 2;
        double mean = 1, a = 1;
        for (int k = 0; k < 5; ++k) mean += a *= p;
        (mean < tokens ? lo : hi) = p;
    }
    return lo;
}

Outcome run(const World& w, int64_t steps, uint64_t seed, SpecSwitch* s) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    struct Step {
        bool drafts;
        int64_t tokens, us;
    };
    std::deque<Step> flying;
    Outcome out;
    double time = 0, tokens = 0;
    const double plain_us = 1000;
    const double chance[] = {chance_of(w.gain * w.dearer), chance_of(w.gain_then * w.dearer)};
    for (int64_t step = 0; step < steps; ++step) {
        const double p = chance[w.change_at >= 0 && step >= w.change_at ? 1 : 0];
        const bool drafts = s->use_drafts(w.batch);
        double us =
            plain_us * (drafts ? w.dearer : 1) * std::max(0.5, 1 + w.noise * normal(random));
        int64_t got = w.batch;
        for (int64_t i = 0; drafts && i < w.batch; ++i) {
            for (int k = 0; k < 5 && random_unit(random) < p; ++k) ++got;
        }
        time += us;
        tokens += static_cast<double>(got);
        out.steps_with += drafts ? 1 : 0;
        // Another process: delays that have nothing to do with the two ways.
        if (random_unit(random) < w.outliers) us *= 12;
        flying.push_back({drafts, got, static_cast<int64_t>(us)});
        if (flying.size() > (w.async ? 1 : 0)) {
            s->observe(w.batch, flying[0].drafts, flying[0].tokens, flying[0].us);
            flying.pop_front();
        }
        (s->on(w.batch) ? out.last_on : out.last_off) = step;
    }
    out.to_plain = tokens / static_cast<double>(w.batch) * plain_us / time;
    return out;
}

constexpr int kSeeds = 40;

/// Mean over seeds of tokens per time, by plain decoding's.
double mean_to_plain(const World& w, int64_t steps) {
    double sum = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SpecSwitch s;
        sum += run(w, steps, seed, &s).to_plain;
    }
    return sum / kSeeds;
}

TEST(SpecSwitch, DraftsThatLoseCostAtMostThreePercentOfTwoHundredSteps) {
    for (const int64_t batch : {1, 4, 16}) {
        for (const double dearer : {2.0, 4.0}) {
            for (const double gain : {0.6, 0.8, 0.9, 0.95}) {
                World w;
                w.batch = batch;
                w.dearer = dearer;
                w.gain = gain;
                SCOPED_TRACE(std::to_string(batch) + " sequences, " + std::to_string(dearer) +
                             " times as dear, gain " + std::to_string(gain));
                // The worst ones are recognized by three steps, which is what is lost.
                const double least = gain < 0.7 ? 0.965 : 0.97;
                EXPECT_GE(mean_to_plain(w, 200), least);
                EXPECT_GE(mean_to_plain(w, 2000), 0.985);
                w.async = false;
                EXPECT_GE(mean_to_plain(w, 200), least);
            }
        }
    }
}

TEST(SpecSwitch, IsOffWithinSomeStepsWhereDraftsLoseATenth) {
    for (const int64_t batch : {1, 4, 16}) {
        World w;
        w.batch = batch;
        w.gain = 0.9;
        int off = 0;
        for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
            SpecSwitch s;
            off += run(w, 60, seed, &s).last_off == 59 ? 1 : 0;
        }
        EXPECT_GE(off, kSeeds * 9 / 10) << batch;
    }
}

/// Drafts that are never right: the trial ends after two of them.
TEST(SpecSwitch, HopelessDraftsAreTriedHardlyMoreThanTwice) {
    World w;
    w.batch = 16;
    w.dearer = 5;
    w.gain = 0.2;
    SpecSwitch s;
    EXPECT_LE(run(w, 40, 1, &s).steps_with, 4);
    EXPECT_FALSE(s.on(16));
}

TEST(SpecSwitch, DraftsThatWinStayOn) {
    for (const int64_t batch : {4, 16}) {
        for (const double gain : {1.15, 1.4}) {
            World w;
            w.batch = batch;
            w.gain = gain;
            EXPECT_GE(mean_to_plain(w, 2000), 0.98 * gain) << batch << " " << gain;
        }
    }
    // One sequence tells little at a time.
    World w;
    w.gain = 1.4;
    EXPECT_GE(mean_to_plain(w, 2000), 0.97 * w.gain);
}

TEST(SpecSwitch, DelayedStepsDecideLittle) {
    for (const int64_t batch : {1, 16}) {
        World w;
        w.batch = batch;
        w.outliers = 0.1;
        w.gain = 0.85;
        EXPECT_GE(mean_to_plain(w, 400), 0.97) << batch;
        w.gain = 1.3;
        EXPECT_GE(mean_to_plain(w, 2000), 1.2) << batch;
    }
}

TEST(SpecSwitch, FollowsTextsThatChange) {
    for (const int64_t batch : {1, 4, 16}) {
        World w;
        w.batch = batch;
        w.change_at = 1000;
        for (uint64_t seed = 1; seed <= 8; ++seed) {
            w.gain = 0.6;
            w.gain_then = 1.4;
            SpecSwitch up;
            const Outcome turned_on = run(w, 4000, seed, &up);
            EXPECT_TRUE(up.on(batch)) << batch << " " << seed;
            EXPECT_LT(turned_on.last_off, 3800) << batch << " " << seed;
            w.gain = 1.4;
            w.gain_then = 0.6;
            SpecSwitch down;
            const Outcome turned_off = run(w, 2000, seed, &down);
            EXPECT_FALSE(down.on(batch)) << batch << " " << seed;
            EXPECT_LT(turned_off.last_on, 1400) << batch << " " << seed;
        }
    }
}

TEST(SpecSwitch, UnknownBatchSizesGoByTheirNeighbours) {
    SpecSwitch s;
    World w;
    w.batch = 4;
    w.gain = 0.8;
    run(w, 100, 1, &s);
    ASSERT_FALSE(s.on(4));
    EXPECT_FALSE(s.use_drafts(16));  // no trial: more sequences lose more
    EXPECT_TRUE(s.use_drafts(1));    // fewer may win
    w.batch = 1;
    w.gain = 1.5;
    run(w, 100, 1, &s);
    EXPECT_TRUE(s.on(1));
    EXPECT_FALSE(s.use_drafts(64));

    SpecSwitch wins;
    w.batch = 16;
    run(w, 100, 1, &wins);
    ASSERT_TRUE(wins.on(16));
    EXPECT_TRUE(wins.use_drafts(3));
    EXPECT_TRUE(wins.on(3));
    EXPECT_TRUE(wins.use_drafts(64));  // on trial
}

/// A neighbour's guess is checked, and given up where it is wrong.
TEST(SpecSwitch, AGuessDoesNotLastForever) {
    SpecSwitch s;
    World w;
    w.batch = 4;
    w.gain = 0.8;
    run(w, 100, 1, &s);
    w.batch = 16;
    w.gain = 1.5;
    run(w, 3000, 1, &s);
    EXPECT_TRUE(s.on(16));
}

/// Whoever draws on windows that were left behind asks beforehand, and not all the time.
TEST(SpecSwitch, SaysBeforehandThatDraftsWillBeTried) {
    World w;
    w.batch = 16;
    w.gain = 0.8;
    SpecSwitch s;
    run(w, 200, 1, &s);
    ASSERT_FALSE(s.on(16));
    int64_t ahead = 0, wanted = 0, tried = 0;
    for (int64_t step = 0; step < 2000; ++step) {
        const bool soon = s.wanted_soon(16);
        wanted += soon ? 1 : 0;
        const bool drafts = s.use_drafts(16);
        if (drafts) {
            ++tried;
            EXPECT_GE(ahead, 33);
        }
        if (!drafts) ahead = soon ? ahead + 1 : 0;
        s.observe(16, drafts, drafts ? 38 : 16, drafts ? 3000 : 1000);
    }
    EXPECT_GE(tried, 8);
    EXPECT_LE(wanted, 500);
}

/// Steps beside prompts are not observed: drafts stay as they are.
TEST(SpecSwitch, WithoutEvidenceDraftsStayOn) {
    SpecSwitch s;
    int64_t with = 0;
    for (int step = 0; step < 1000; ++step) with += s.use_drafts(4) ? 1 : 0;
    EXPECT_GT(with, 980);
    EXPECT_TRUE(s.on(4));
}

TEST(SpecSwitch, StepsThatAnotherProcessDelayedDecideNothing) {
    std::mt19937_64 random(4);
    SpecSwitch s;
    for (int64_t step = 0; step < 20000; ++step) {
        const bool drafts = s.use_drafts(4);
        // Drafts pay by a fifth; one step in ten takes twelve times as long.
        const int64_t us = (drafts ? 2000 : 1000) * (random() % 10 == 0 ? 12 : 1);
        s.observe(4, drafts, drafts ? 9 + static_cast<int64_t>(random() % 2) : 4, us);
    }
    EXPECT_TRUE(s.on(4));
    EXPECT_LE(s.num_switched_off(), 1);
}

TEST(SpecSwitch, ComesBackWhenDraftsPayAgain) {
    SpecSwitch s;
    int64_t off_at = -1, on_at = -1;
    for (int64_t step = 0; step < 6000; ++step) {
        const bool drafts = s.use_drafts(4);
        const bool pays = step >= 1000;
        s.observe(4, drafts, drafts && pays ? 12 : 4, drafts ? 1500 : 1000);
        if (off_at < 0 && !s.on(4)) off_at = step;
        if (off_at >= 0 && on_at < 0 && s.on(4)) on_at = step;
    }
    EXPECT_GE(off_at, 0);
    EXPECT_LT(off_at, 100);
    EXPECT_GT(on_at, 1000);
    EXPECT_TRUE(s.on(4));
    EXPECT_TRUE(s.on(64));  // other batch sizes were never asked
    EXPECT_EQ(s.num_switched_off(), 1);
}

}  // namespace
}  // namespace deepinfer
