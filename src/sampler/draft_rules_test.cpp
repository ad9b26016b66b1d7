// What the rules give has the target's distribution: joint chi-square tests over three tokens of a
// toy Markov chain, with rounds that go on where the last one stopped.
#include "sampler/draft_rules.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <optional>

#include "sampler/sampler.h"
#include "support/case_file.h"

namespace deepinfer {
namespace {

// The long variant gives every rule its million rounds under every setting; the quick one the
// widest support alone, and the others enough to notice a bug.
#ifdef DEEPINFER_FULL_LAWS
#define SUITE DraftRulesFull
constexpr bool kFull = true;
#else
#define SUITE DraftRules
constexpr bool kFull = false;
#endif
constexpr int kV = 5, kTokens = 3, kRounds = 1'000'000;

/// The chi-square value that chance exceeds once in a million (Wilson and Hilferty's cube).
double chi_square_bound(double df) {
    const double a = 2.0 / (9.0 * df), z = 4.7534;
    return df * std::pow(1 - a + z * std::sqrt(a), 3);
}

/// Logits of target and draft behind each token; processed by a request's parameters.
struct Chain {
    explicit Chain(const SamplingParams& params) : plan(params) {
        // Target and draft agree roughly, differ everywhere, and each lacks a token now and then.
        for (int a = 0; a < kV; ++a) {
            for (int b = 0; b < kV; ++b) {
                target[a][b] = static_cast<float>(std::sin(1.7 * a + 2.3 * b) * 1.5);
                draft[a][b] = static_cast<float>(target[a][b] + std::cos(3.1 * a + 0.9 * b));
            }
        }
        target[2][4] = draft[3][1] = -INFINITY;
        for (int a = 0; a < kV; ++a) {
            p.push_back(sampler.distribution(row(target[a].data()), ws));
            q.push_back(sampler.distribution(row(draft[a].data()), ws));
        }
    }
    SampleRow row(const float* logits) const {
        SampleRow r;
        r.logits = logits;
        r.plan = &plan;
        return r;
    }

    Sampler sampler{kV, {}};
    SamplerWorkspace ws;
    RowPlan plan;
    std::array<std::array<float, kV>, kV> target, draft;
    std::vector<Distribution> p, q;
};

enum class Rule { kRejection, kArgmax, kBlock, kCoupled };

struct Round {
    std::vector<int32_t> tokens;
    int accepted = 0;
};

/// One round of `gamma` drafts behind `anchor` at `position`.
Round run_round(Chain& c, Rule rule, int gamma, uint64_t seed, uint32_t position, int32_t anchor) {
    std::vector<int32_t> drafts;
    std::vector<Distribution> q;
    std::vector<int32_t> before{anchor};
    const auto sample = [&](const float* logits, uint32_t at) {
        SampleRow r = c.row(logits);
        r.seed = seed;
        r.position = at;
        return c.sampler.sample(r, c.ws).token;
    };
    for (int k = 0; k < gamma; ++k) {
        const auto prev = static_cast<size_t>(before.back());
        const uint32_t at = position + 1 + static_cast<uint32_t>(k);
        int32_t x = 0;
        if (rule == Rule::kCoupled) {
            x = sample(c.draft[prev].data(), at);
        } else if (rule == Rule::kArgmax) {
            x = static_cast<int32_t>(std::max_element(c.draft[prev].begin(), c.draft[prev].end()) -
                                     c.draft[prev].begin());
            q.push_back(Distribution::point(x));
        } else {
            x = c.q[prev].draw(
                named_uniform(seed, at, NoiseStream::kDraft, 0, static_cast<uint32_t>(k) + 1));
            q.push_back(c.q[prev]);
        }
        drafts.push_back(x);
        before.push_back(x);
    }
    Round out;
    if (rule == Rule::kCoupled) {
        for (int k = 0; k <= gamma; ++k) {
            const size_t at = static_cast<size_t>(k);
            out.tokens.push_back(sample(c.target[static_cast<size_t>(before[at])].data(),
                                        position + 1 + static_cast<uint32_t>(k)));
            if (k == gamma || out.tokens.back() != drafts[at]) break;
            ++out.accepted;
        }
        return out;
    }
    DraftRound round;
    round.drafts = drafts;
    round.q = q;
    round.p = [&](int k) -> const Distribution& {
        return c.p[static_cast<size_t>(before[static_cast<size_t>(k)])];
    };
    round.u = [&](int k) {
        return named_uniform(seed,
                             position + 1 + static_cast<uint32_t>(k),
                             NoiseStream::kAcceptance,
                             0,
                             static_cast<uint32_t>(k) + 1);
    };
    round.u_next = named_uniform(seed, position + 1, NoiseStream::kOther, 0, 0);
    const DraftVerdict v =
        rule == Rule::kBlock ? verify_by_block(round) : verify_by_rejection(round);
    out.accepted = v.num_accepted;
    out.tokens.assign(drafts.begin(), drafts.begin() + v.num_accepted);
    out.tokens.push_back(v.next);
    return out;
}

struct Outcome {
    double chi_square = 0;
    int df = 0;
    double accepted = 0;  ///< per round
};

/// Rounds from token 0 until kTokens tokens are out; the joint histogram against the chain.
Outcome run(const SamplingParams& params, Rule rule, int gamma, int rounds) {
    Chain c(params);
    std::array<int64_t, kV * kV * kV> count{};
    int64_t done = 0, accepted = 0, sequences = 0;
    for (uint64_t seed = 0; done < rounds; ++seed, ++sequences) {
        std::vector<int32_t> out{0};
        while (out.size() < kTokens + 1) {
            const auto position = static_cast<uint32_t>(out.size()) - 1;
            const Round r = run_round(c, rule, gamma, seed, position, out.back());
            out.insert(out.end(), r.tokens.begin(), r.tokens.end());
            accepted += r.accepted;
            ++done;
        }
        ++count[static_cast<size_t>((out[1] * kV + out[2]) * kV + out[3])];
    }
    Outcome o;
    o.accepted = static_cast<double>(accepted) / static_cast<double>(done);
    for (int a = 0; a < kV; ++a) {
        for (int b = 0; b < kV; ++b) {
            for (int d = 0; d < kV; ++d) {
                const double want = static_cast<double>(sequences) * c.p[0].at(a) *
                                    c.p[static_cast<size_t>(a)].at(b) *
                                    c.p[static_cast<size_t>(b)].at(d);
                const auto got =
                    static_cast<double>(count[static_cast<size_t>((a * kV + b) * kV + d)]);
                if (want == 0) {
                    EXPECT_EQ(got, 0) << a << b << d;
                    continue;
                }
                o.chi_square += (got - want) * (got - want) / want;
                ++o.df;
            }
        }
    }
    --o.df;
    return o;
}

TEST(SUITE, JointDistributionIsTheTargets) {
    for (const double temperature : {0.7, 1.0}) {
        for (const double top_p : {0.5, 1.0}) {
            SamplingParams params;
            params.temperature = temperature;
            params.top_p = top_p;
            for (const Rule rule :
                 {Rule::kRejection, Rule::kArgmax, Rule::kBlock, Rule::kCoupled}) {
                const bool most = kFull || (temperature == 1.0 && top_p == 1.0);
                const Outcome o = run(params, rule, 2, most ? kRounds : kRounds / 10);
                EXPECT_LT(o.chi_square, chi_square_bound(o.df))
                    << "rule " << static_cast<int>(rule) << ", temperature " << temperature
                    << ", top_p " << top_p << ", df " << o.df;
            }
        }
    }
}

TEST(SUITE, GreedyRoundsGiveTheArgmaxChain) {
    SamplingParams params;
    params.temperature = 0;
    Chain c(params);
    for (const Rule rule : {Rule::kRejection, Rule::kArgmax, Rule::kBlock, Rule::kCoupled}) {
        for (uint64_t seed = 0; seed < 20; ++seed) {
            int32_t token = 0;
            for (const int32_t t : run_round(c, rule, 3, seed, 0, 0).tokens) {
                token = c.p[static_cast<size_t>(token)].ids[0];
                EXPECT_EQ(t, token);
            }
        }
    }
}

TEST(SUITE, BlockAcceptsAtLeastAsMuchAsRejection) {
    for (const double temperature : {0.7, 1.0}) {
        SamplingParams params;
        params.temperature = temperature;
        for (const int gamma : {1, 3}) {
            const double rejection = run(params, Rule::kRejection, gamma, 200'000).accepted;
            const double block = run(params, Rule::kBlock, gamma, 200'000).accepted;
            if (gamma == 1) {
                EXPECT_NEAR(block, rejection, 0.01);
            } else {
                EXPECT_GT(block, rejection + 0.005);
            }
        }
    }
}

TEST(SUITE, NothingAllowedEndsTheRound) {
    const std::vector<int32_t> drafts{1, 2};
    const std::vector<Distribution> q(2, Distribution{{1, 2}, {0.5, 0.5}});
    const Distribution one = Distribution::point(1), none;
    for (auto* verify : {&verify_by_rejection, &verify_by_block}) {
        DraftRound round;
        round.drafts = drafts;
        round.q = q;
        round.u = [](int) { return 0.5; };
        round.u_next = 0.5;
        round.p = [&](int k) -> const Distribution& { return k == 0 ? one : none; };
        const DraftVerdict v = verify(round);
        EXPECT_EQ(v.num_accepted, 1);
        EXPECT_EQ(v.next, -1);
    }
}

TEST(SUITE, C071_OneDistributionWithAndWithoutDrafts) {
    const nlohmann::json field = testing::load_case("speculation.json", "C-071");
    const nlohmann::json setup = field["setup"];
    const std::vector<float> target = setup["target_logits"];
    const std::vector<double> want = setup["distribution"];
    SamplingParams params;
    params.temperature = setup["temperature"];
    params.top_p = setup["top_p"];
    const RowPlan plan(params);
    Sampler sampler(static_cast<int64_t>(target.size()), {});
    SamplerWorkspace ws;
    SampleRow row;
    row.plan = &plan;
    row.logits = target.data();
    const Distribution p = sampler.distribution(row, ws);
    for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(p.at(static_cast<int32_t>(i)), want[i], 1e-8) << i;
    }
    params.top_p = 1;  // the field's drafter only knows the temperature
    const RowPlan draft_plan(params);
    int rows = 0;
    for (const nlohmann::json& r : field["rows"]) {
        const std::vector<float> logits = r["in"]["draft_logits"];
        const std::string rule = r["in"]["rule"];
        const uint64_t run_seed = r["in"]["seed"];
        row.logits = logits.data();
        row.plan = &draft_plan;
        const Distribution q = sampler.distribution(row, ws);
        row.plan = &plan;
        const int draws = setup["draws"];
        std::vector<int64_t> count(want.size(), 0);
        int accepted = 0;
        for (int i = 0; i < draws; ++i) {
            const uint64_t seed = run_seed << 32 | static_cast<uint64_t>(i);
            int32_t token = 0;
            if (rule == "coupled") {
                row.seed = seed;
                row.position = 1;
                row.logits = logits.data();
                const int32_t draft = sampler.sample(row, ws).token;
                row.logits = target.data();
                token = sampler.sample(row, ws).token;
                accepted += token == draft;
            } else {
                std::vector<Distribution> from{q};
                if (rule == "argmax draft") {
                    from[0] = Distribution::point(static_cast<int32_t>(
                        std::max_element(logits.begin(), logits.end()) - logits.begin()));
                }
                const std::vector<int32_t> drafts{
                    from[0].draw(named_uniform(seed, 1, NoiseStream::kDraft, 0, 1))};
                DraftRound round;
                round.drafts = drafts;
                round.q = from;
                round.p = [&](int) -> const Distribution& { return p; };
                round.u = [&](int) {
                    return named_uniform(seed, 1, NoiseStream::kAcceptance, 0, 1);
                };
                round.u_next = named_uniform(seed, 1, NoiseStream::kOther, 0, 0);
                const DraftVerdict v =
                    rule == "block" ? verify_by_block(round) : verify_by_rejection(round);
                accepted += v.num_accepted;
                token = v.num_accepted > 0 ? drafts[0] : v.next;
            }
            ++count[static_cast<size_t>(token)];
        }
        double chi = 0;
        for (size_t i = 0; i < want.size(); ++i) {
            const double e = want[i] * draws, got = static_cast<double>(count[i]);
            if (e == 0) {
                EXPECT_EQ(count[i], 0);
            } else {
                chi += (got - e) * (got - e) / e;
            }
        }
        EXPECT_LT(chi, setup["chi_square_3df_below"].get<double>()) << r.dump();
        if (r["want"].is_object()) {
            EXPECT_NEAR(accepted / static_cast<double>(draws), r["want"]["acceptance"], 0.005)
                << r.dump();
        }
        ++rows;
    }
    EXPECT_EQ(rows, 6);
}

}  // namespace
}  // namespace deepinfer
