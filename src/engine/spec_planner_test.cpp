// The arithmetic of confidence scheduling: budgets against brute force, calibration against a known
// truth, the off-switch and the whole planner against a cost model.
#include "engine/spec_planner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "engine/draft_budget.h"
#include "sampler/draft_rules.h"
#include "support/case_file.h"
#include "support/scratch_dir.h"

namespace deepinfer {
namespace {

using Survivals = std::vector<std::vector<float>>;

double random_unit(std::mt19937_64& random) {
    return static_cast<double>(random() >> 11) * 0x1p-53;
}

Survivals random_survivals(std::mt19937_64& random, int sequences, int gamma) {
    Survivals all(static_cast<size_t>(sequences));
    for (auto& row : all) {
        float a = 1;
        for (int k = 0; k < gamma; ++k) {
            a *= static_cast<float>(0.2 + 0.8 * random_unit(random));
            row.push_back(a);
        }
    }
    return all;
}

/// The best rate over every choice of lengths.
double brute_force(
    const Survivals& all, const std::vector<double>& cost, size_t at, int64_t m, double tokens) {
    if (at == all.size()) return tokens / cost[static_cast<size_t>(m)];
    double best = 0;
    for (size_t len = 0; len <= all[at].size(); ++len) {
        if (len > 0) tokens += static_cast<double>(all[at][len - 1]);
        best =
            std::max(best, brute_force(all, cost, at + 1, m + static_cast<int64_t>(len), tokens));
    }
    return best;
}

/// Steps up while the next draft is better: right only where the rate is concave.
int64_t early_stop(const Survivals& all, const std::vector<double>& cost) {
    std::vector<double> flat;
    for (const auto& row : all) flat.insert(flat.end(), row.begin(), row.end());
    std::sort(flat.begin(), flat.end(), std::greater<>());
    double tokens = static_cast<double>(all.size());
    size_t m = 0;
    while (m < flat.size() && (tokens + flat[m]) / cost[m + 1] > tokens / cost[m])
        tokens += flat[m++];
    return static_cast<int64_t>(m);
}

TEST(DraftBudget, EqualsBruteForceForSmoothAndForJaggedCosts) {
    std::mt19937_64 random(5);
    int early_stop_wrong[2] = {0, 0};
    for (int trial = 0; trial < 300; ++trial) {
        const int sequences = 1 + static_cast<int>(random() % 4),
                  gamma = 1 + static_cast<int>(random() % 3);
        const Survivals all = random_survivals(random, sequences, gamma);
        for (const bool jagged : {false, true}) {
            std::vector<double> cost;
            for (int m = 0; m <= sequences * gamma; ++m) {
                const int rows = sequences + m;
                // Smooth: fixed part and a convex rest. Jagged: padded to multiples of 4, on a
                // whim.
                cost.push_back(jagged ? 3 + (rows + 3) / 4 * 2 + random_unit(random)
                                      : 4 + 0.3 * rows + 0.02 * rows * rows);
            }
            std::vector<double> flat;
            for (const auto& row : all) flat.insert(flat.end(), row.begin(), row.end());
            const DraftBudget found =
                best_draft_budget(flat, sequences, sequences * gamma, [&](int64_t n) {
                    return cost[static_cast<size_t>(n)];
                });
            const int64_t m = found.drafts;
            const std::vector<int32_t> lengths = allocate_drafts(all, m, 0);
            double tokens = sequences;
            int64_t used = 0;
            for (size_t r = 0; r < all.size(); ++r) {
                for (int32_t k = 0; k < lengths[r]; ++k)
                    tokens += static_cast<double>(all[r][static_cast<size_t>(k)]);
                used += lengths[r];
            }
            EXPECT_EQ(used, m);
            const double best = brute_force(all, cost, 0, 0, sequences);
            EXPECT_NEAR(tokens / cost[static_cast<size_t>(m)], best, 1e-9 * best);
            EXPECT_NEAR(found.rate, best, 1e-9 * best);
            if (early_stop(all, cost) != m) ++early_stop_wrong[jagged];
        }
    }
    EXPECT_EQ(early_stop_wrong[0], 0);
    EXPECT_GT(early_stop_wrong[1], 50);
}

TEST(DraftBudget, AllocationTakesBeginningsInAFixedOrder) {
    const Survivals all{{0.9F, 0.5F, 0.5F}, {0.5F, 0.5F}, {}};
    EXPECT_EQ(allocate_drafts(all, -1, 0), (std::vector<int32_t>{3, 2, 0}));
    EXPECT_EQ(allocate_drafts(all, 0, 0), (std::vector<int32_t>{0, 0, 0}));
    EXPECT_EQ(allocate_drafts(all, 2, 0), (std::vector<int32_t>{1, 1, 0}));
    EXPECT_EQ(allocate_drafts(all, 3, 0), (std::vector<int32_t>{2, 1, 0}));
    EXPECT_EQ(allocate_drafts(all, 99, 0.6F), (std::vector<int32_t>{1, 0, 0}));
}

/// The paper's counterexample: whoever decides on x1 knowing what x1 led to biases it.
TEST(DraftBudget, AdmissionDoesNotHangOnTheDraftItself) {
    const Distribution p{{0, 1}, {0.7, 0.3}}, q{{0, 1}, {0.5, 0.5}};
    const auto share_of_a = [&](auto admitted) {
        int a = 0;
        constexpr int kDraws = 100'000;
        for (uint64_t seed = 0; seed < kDraws; ++seed) {
            const std::vector<int32_t> drafts{
                q.draw(named_uniform(seed, 1, NoiseStream::kDraft, 0, 1))};
            const std::vector<Distribution> from{q};
            DraftRound round;
            if (admitted(drafts[0])) {
                round.drafts = drafts;
                round.q = from;
            }
            round.p = [&](int) -> const Distribution& { return p; };
            round.u = [&](int) { return named_uniform(seed, 1, NoiseStream::kAcceptance, 0, 1); };
            round.u_next = named_uniform(seed, 1, NoiseStream::kOther, 0, 0);
            const DraftVerdict v = verify_by_rejection(round);
            a += (v.num_accepted > 0 ? drafts[0] : v.next) == 0 ? 1 : 0;
        }
        return a / static_cast<double>(kDraws);
    };
    // c2 is high behind x1 = A and low behind B. A search over this round's own survivals:
    const auto live = [](int32_t x1) {
        return std::vector<float>{0.5F, 0.5F * (x1 == 0 ? 0.95F : 0.05F)};
    };
    const auto cost = [](int64_t m) { return m == 0 ? 1.0 : 1.6 + 0.05 * static_cast<double>(m); };
    const double retrospective = share_of_a([&](int32_t x1) {
        const std::vector<float> a = live(x1);
        return best_draft_budget({a.begin(), a.end()}, 1, 2, cost).drafts > 0;
    });
    EXPECT_NEAR(retrospective, 0.85, 0.006);
    // Ours: the budget is older, and x1 competes with its own confidence alone.
    for (const int64_t budget : {1, 2, 3}) {
        const double ours = share_of_a([&](int32_t x1) {
            return allocate_drafts({live(x1), {0.45F, 0.3F}}, budget, 0)[0] > 0;
        });
        EXPECT_NEAR(ours, 0.70, 0.006) << budget;
    }
}

TEST(DraftCalibration, FindsTheTruthAndLastsOnDisk) {
    // Position 0 is overconfident (T = 2), position 1 underconfident (T = 0.5), 2 is never right.
    const DraftScale truth[] = {{2, 0}, {0.5F, 0}, {1, -30}};
    DraftCalibration c(3);
    EXPECT_FALSE(c.refit());
    std::mt19937_64 random(9);
    for (int i = 0; i < 6000; ++i) {
        for (int k = 0; k < 3; ++k) {
            const auto logit = static_cast<float>(8 * random_unit(random) - 4);
            c.add(k, logit, random_unit(random) < static_cast<double>(truth[k].probability(logit)));
        }
        c.refit();
    }
    for (int k = 0; k < 3; ++k) {
        double worst = 0;
        for (float logit = -3.5F; logit < 3.6F; logit += 0.5F) {
            worst = std::max(
                worst,
                static_cast<double>(std::abs(c.scales()[static_cast<size_t>(k)].probability(logit) -
                                             truth[k].probability(logit))));
        }
        EXPECT_LT(worst, 0.08) << k;
    }
    const testing::ScratchDir dir;
    const std::string path = dir.file("calibration.json");
    DraftCalibration read(3);
    EXPECT_TRUE(read.load(path, "model a").ok());  // not there yet
    ASSERT_TRUE(c.save(path, "model a").ok());
    ASSERT_TRUE(read.load(path, "model a").ok());
    EXPECT_EQ(read.scales(), c.scales());
    const Status other = read.load(path, "model b");
    EXPECT_EQ(other.code(), StatusCode::kInvalidFile);
    EXPECT_NE(other.message().find("model a"), std::string::npos);
    EXPECT_NE(other.message().find("model b"), std::string::npos);
    EXPECT_EQ(DraftCalibration(5).load(path, "model a").code(), StatusCode::kInvalidFile);
    for (const std::string& text : {std::string(),
                                    std::string("[]"),
                                    std::string("{\"format\":1}"),
                                    c.to_json("m").substr(0, 200)}) {
        EXPECT_FALSE(DraftCalibration(3).from_json(text, "m").ok()) << text;
    }
    EXPECT_FALSE(c.save("/no/such/folder/x.json", "m").ok());
}

/// A drafter that gets unsure behind a draft of its own that was wrong: confidences that hold where
/// a position is reached would still promise the wrong survival. What schedules go by must hold.
TEST(DraftCalibration, SurvivalHoldsThoughConfidencesHangTogether) {
    DraftCalibration c(3);
    std::mt19937_64 random(12);
    double promised[3] = {0, 0, 0}, kept[3] = {0, 0, 0};
    constexpr int kRounds = 8000, kLearn = 4000;
    for (int i = 0; i < kRounds; ++i) {
        std::vector<float> logits;
        int accepted = 0;
        for (int k = 0; k < 3; ++k) {
            const bool lost = accepted < k;
            const double chance = 0.5 + 0.45 * random_unit(random);
            logits.push_back(static_cast<float>(4 * chance - 2 - (lost ? 0.8 : 0)));
            if (!lost && random_unit(random) < chance) ++accepted;
        }
        const std::vector<float> s = survival(logits, c.scales());
        for (int k = 0; i >= kLearn && k < 3; ++k) {
            promised[k] += static_cast<double>(s[static_cast<size_t>(k)]);
            kept[k] += k < accepted ? 1 : 0;
        }
        c.add_round(logits, 3, accepted);
        c.refit();
    }
    for (int k = 0; k < 3; ++k) {
        EXPECT_NEAR(promised[k] / (kRounds - kLearn), kept[k] / (kRounds - kLearn), 0.03) << k;
    }
}

TEST(StepCosts, CurvesRiseInterpolateAndFollow) {
    CostCurve c;
    c.set({{1, 10.0}, {2, 9.0}, {4, 14.0}, {8, 30.0}});
    EXPECT_EQ(c.at(2), 10.0);
    EXPECT_EQ(c.at(3), 12.0);
    EXPECT_EQ(c.at(12), 46.0);
    c.correct(4, 15.0);  // within 15 %
    EXPECT_EQ(c.at(4), 14.0);
    for (int i = 0; i < 200; ++i) c.correct(4, 28.0);
    EXPECT_NEAR(c.at(4), 28.0, 0.15 * 28 + 0.01);
    StepCosts s;
    EXPECT_FALSE(s.known());
    s.set({{1, 10.0}, {64, 100.0}}, {{1, 2.0}});
    EXPECT_TRUE(s.known());
    for (int i = 0; i < 200; ++i) s.correct_verify(1, 100'000, 50.0);
    EXPECT_GT(s.verify_us(1, 100'000), 40.0);
    EXPECT_EQ(s.verify_us(1, 1000), 10.0);
    EXPECT_EQ(StepCosts::sizes(1), (std::vector<int64_t>{1}));
    EXPECT_EQ(StepCosts::sizes(300).back(), 300);
}

TEST(RowLine, TakesPromptRowsOffWhatAStepTook) {
    RowLine line;
    EXPECT_FALSE(line.known());
    for (int i = 0; i < 20; ++i) line.add(16, 2600);
    EXPECT_FALSE(line.known());  // one size tells no slope
    std::mt19937_64 random(8);
    for (int i = 0; i < 200; ++i) {
        const auto rows = static_cast<int64_t>(1 + random() % 40);
        const double us =
            (1000 + 100 * static_cast<double>(rows)) * (0.9 + 0.2 * random_unit(random));
        line.add(rows, static_cast<int64_t>(us));
    }
    ASSERT_TRUE(line.known());
    EXPECT_NEAR(line.share(16, 32), 2600.0 / 4200, 0.02);
    EXPECT_EQ(line.share(7, 7), 1);
    // Rows that cost nothing, and steps that fall with their rows.
    RowLine flat;
    for (int i = 0; i < 20; ++i) flat.add(1 + i % 3, 1000 - 10 * (i % 3));
    EXPECT_EQ(flat.share(1, 3), 1);
    // No fixed part at all: nothing is less than nothing.
    RowLine steep;
    for (int i = 0; i < 20; ++i) steep.add(1 + i % 2, 100 + 300 * (i % 2));
    EXPECT_NEAR(steep.share(1, 2), 0.5, 1e-9);
}

/// Drives the planner with some sequences, a drafter that is right with a fixed chance and a cost
/// model: "plain" for one row and "verify_per_extra_row" for each other, "draft" for drafting and
/// "draft_per_row" for each drafted token.
struct Drive {
    double speed_ratio = 0, mean_verified = 0, mean_block = 0;
    int64_t switched_off = 0;
};
Drive drive(SpecOptions options,
            double chance,
            int steps,
            const nlohmann::json& ms,
            float logit = 1,
            int sequences = 1) {
    options.nextn = 5;
    SpecPlanner planner(options);
    const double row = ms["verify_per_extra_row"];
    const auto verify_us = [&](int64_t rows) {
        return 1000 * (ms["plain"].get<double>() + static_cast<double>(rows - 1) * row);
    };
    const auto draft_us = [&](int64_t rows) {
        return 1000 * (ms["draft"].get<double>() +
                       ms.value("draft_per_row", 0.0) * static_cast<double>(rows));
    };
    planner.costs().set({{1, verify_us(1)}, {400, verify_us(400)}},
                        {{1, draft_us(1)}, {400, draft_us(400)}});
    std::mt19937_64 random(3);
    double tokens = 0, time = 0, verified = 0, block_sum = 0;
    for (uint64_t step = 1; step <= static_cast<uint64_t>(steps); ++step) {
        std::vector<SpecPlanner::Decode> decodes;
        for (int32_t i = 0; i < sequences; ++i) decodes.push_back({i, 1, 5});
        const SpecPlanner::Decision d = planner.decide(step, decodes, 0, 5 * sequences, 100);
        const int block = d.budget == 0 ? 0 : d.block == 0 ? 5 : d.block;
        StepPlan plan;
        plan.step = step;
        plan.draft_budget = d.budget;
        plan.draft_block = d.block;
        plan.draft_scales = d.scales;
        plan.num_draft_rows = d.budget == kAllDrafts ? 5 * sequences : d.budget;
        plan.num_decode_rows = sequences;
        StepResult result;
        result.step = step;
        std::vector<std::vector<float>> survivals;
        for (int32_t i = 0; i < sequences; ++i) {
            ChunkPlan c;
            c.slot = i;
            c.epoch = 1;
            c.decode = c.sample = true;
            c.num_drafts = block;
            plan.chunks.push_back(c);
            ChunkResult& r = result.chunks.emplace_back();
            r.drafts.num_proposed = block;
            r.drafts.confidence.assign(static_cast<size_t>(block), logit);
            survivals.push_back(survival(r.drafts.confidence, plan.draft_scales));
        }
        const std::vector<int32_t> counts = allocate_drafts(survivals, d.budget, d.least_survival);
        int64_t rows = 0;
        for (size_t i = 0; i < result.chunks.size(); ++i) {
            ChunkResult& r = result.chunks[i];
            r.drafts.num_verified = counts[i];
            while (r.drafts.num_accepted < counts[i] && random_unit(random) < chance) {
                ++r.drafts.num_accepted;
            }
            r.drafts.bonus = true;
            r.num_rows = 1 + counts[i];
            r.tokens.resize(static_cast<size_t>(1 + r.drafts.num_accepted));
            rows += r.num_rows;
            tokens += static_cast<double>(r.tokens.size());
            verified += counts[i];
        }
        const double drafting = block > 0 ? draft_us(block * sequences) : 0;
        const double us = verify_us(rows) + drafting;
        result.draft_us = static_cast<int64_t>(drafting);
        result.step_us = static_cast<int64_t>(us);
        planner.observe(plan, result);
        time += us;
        block_sum += block;
    }
    SpecStats stats;
    planner.fill(&stats);
    return {tokens / time * verify_us(sequences) / sequences,
            verified / steps / sequences,
            block_sum / steps,
            stats.switched_off};
}

TEST(SpecPlanner, C074_DraftsThatFailCostLittleAndComeBackWhenTheySucceed) {
    const nlohmann::json rows = testing::case_rows("speculation.json", "C-074");
    const nlohmann::json ms = rows[0]["in"]["cost_model_ms"];
    const int steps = rows[0]["in"]["steps"];
    SpecOptions varlen;
    varlen.varlen = true;
    const double chance[] = {0, 0.5, 1};
    for (size_t i = 0; i < 3; ++i) {
        for (const float logit : {-2.0F, 0.0F, 3.0F}) {  // whatever the confidences say
            const Drive d = drive(varlen, chance[i], steps, ms, logit);
            const nlohmann::json want = rows[i]["want"];
            if (want.contains("speed_ratio_to_off_at_least")) {
                EXPECT_GE(d.speed_ratio, want["speed_ratio_to_off_at_least"].get<double>())
                    << i << " " << logit;
            }
            if (want.contains("mean_verify_len_at_most")) {
                EXPECT_LE(d.mean_verified, want["mean_verify_len_at_most"].get<double>())
                    << i << " " << logit;
            }
            if (want.contains("mean_verify_len_at_least")) {
                EXPECT_GE(d.mean_verified, want["mean_verify_len_at_least"].get<double>())
                    << i << " " << logit;
            }
        }
    }
}

TEST(SpecPlanner, OffSwitchKeepsFixedLengthsFromCostingSpeed) {
    const nlohmann::json ms{{"plain", 10}, {"draft", 2}, {"verify_per_extra_row", 1}};
    SpecOptions fixed;  // all five, always
    const Drive wrong = drive(fixed, 0, 4000, ms);
    EXPECT_GE(wrong.speed_ratio, 0.97);
    EXPECT_EQ(wrong.switched_off, 1);
    const Drive right = drive(fixed, 0.9, 4000, ms);
    EXPECT_EQ(right.switched_off, 0);
    EXPECT_GT(right.speed_ratio, 2);
    fixed.auto_off = false;
    EXPECT_LT(drive(fixed, 0, 4000, ms).speed_ratio, 0.6);
}

TEST(SpecPlanner, VarlenIsAsFastAsTheBestFixedLength) {
    SpecOptions varlen;
    varlen.varlen = true;
    for (const double chance : {0.2, 0.5, 0.7, 0.95}) {
        const nlohmann::json ms{{"plain", 10}, {"draft", 2}, {"verify_per_extra_row", 2}};
        double best = 1;
        for (int m = 1; m <= 5; ++m) {
            double tokens = 1, a = 1;
            for (int k = 0; k < m; ++k) tokens += a *= chance;
            best = std::max(best, tokens / (12.0 + 2 * m) * 10);
        }
        EXPECT_GE(drive(varlen, chance, 6000, ms).speed_ratio, 0.97 * best) << chance;
    }
}

/// Where a row is dear and drafting costs by its rows, a short block is all that pays.
TEST(SpecPlanner, BlocksAreAsLongAsPays) {
    SpecOptions varlen;
    varlen.varlen = true;
    const nlohmann::json ms{
        {"plain", 1}, {"draft", 0.2}, {"verify_per_extra_row", 0.3}, {"draft_per_row", 0.1}};
    for (const int sequences : {1, 4, 16}) {
        for (const double chance : {0.5, 0.8, 0.95}) {
            double best = 1;
            int best_length = 0;
            const auto cost = [&](int m) {
                return 1 + 0.3 * (sequences * (1 + m) - 1) +
                       (m > 0 ? 0.2 + 0.1 * m * sequences : 0);
            };
            for (int m = 1; m <= 5; ++m) {
                double tokens = 1, a = 1;
                for (int k = 0; k < m; ++k) tokens += a *= chance;
                const double rate = tokens / cost(m) * cost(0);
                if (rate > best) best = rate, best_length = m;
            }
            const Drive d = drive(varlen, chance, 4000, ms, 1, sequences);
            EXPECT_GE(d.speed_ratio, 0.97 * best) << sequences << " sequences, " << chance;
            if (best > 1.05) {  // else any length does, none too
                EXPECT_NEAR(d.mean_block, best_length, 1.1) << sequences << " " << chance;
            }
        }
    }
}

TEST(DraftMetrics, CountsRoundsAndReliability) {
    DraftMetrics m(2);
    const std::vector<DraftScale> scales(2);
    DraftOutcome o;
    o.num_proposed = o.num_verified = 2;
    o.confidence = {2, 0};
    o.num_accepted = 2;
    o.bonus = true;
    m.add(o, scales);
    o.num_accepted = 0;
    m.add(o, scales);
    o.num_accepted = 1;
    o.bonus = false;  // a stop id
    m.add(o, scales);
    SpecStats s;
    m.fill(&s);
    EXPECT_EQ(s.rounds, 3);
    EXPECT_DOUBLE_EQ(s.acceptance_length(), 5.0 / 3);
    EXPECT_DOUBLE_EQ(s.draft_tokens_per_proposal(), 2);
    EXPECT_DOUBLE_EQ(s.verify_rate(), 6.0 / 9);
    EXPECT_DOUBLE_EQ(s.accept_rate(0), 2.0 / 3);
    EXPECT_DOUBLE_EQ(s.conditional_acceptance(1), 0.5);
    // Position 0 was promised 0.8808 three times and kept twice; position 1 0.4404 twice, once.
    EXPECT_NEAR(s.ece[0], 0.8808 - 2.0 / 3, 1e-3);
    EXPECT_NEAR(s.ece[1], 0.5 - 0.4404, 1e-3);
    EXPECT_NEAR(s.auroc[1], 0.5, 1e-12);
    EXPECT_NEAR(s.predicted_tokens, 3 * (1 + 0.8808 + 0.4404), 1e-3);
}

}  // namespace
}  // namespace deepinfer
