#include "sampler/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "sampler/sampler_oracle.h"

namespace deepinfer {
namespace {

using testing::Oracle;
using testing::OracleResult;
using testing::OracleRow;
using testing::test_seed;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<const RowKernels*> all_kernels() {
    std::vector<const RowKernels*> out;
    for (const char* name : {"baseline", "avx2", "avx512"}) {
        if (const RowKernels* k = row_kernels_by_name(name)) out.push_back(k);
    }
    return out;
}

struct Given {
    std::vector<float> logits;
    SamplingParams params;
    TokenHistory history;
    uint32_t position = 3;
    uint64_t seed = 1;
    uint32_t sub_sequence = 0;
};

SampleResult sample(const Given& g) {
    const Sampler sampler(static_cast<int64_t>(g.logits.size()), {});
    const RowPlan plan(g.params);
    SampleRow row;
    row.logits = g.logits.data();
    row.plan = &plan;
    row.history = &g.history;
    row.position = g.position;
    row.seed = g.seed;
    row.sub_sequence = g.sub_sequence;
    SamplerWorkspace ws;
    return sampler.sample(row, ws);
}

std::vector<float> random_logits(std::mt19937_64& rng, size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> l(n);
    const int kind = static_cast<int>(rng() % 8);
    for (float& x : l) {
        const float g = normal(rng);
        switch (kind) {
            case 0:
                x = g;
                break;
            case 1:
                x = 5 * g;
                break;
            case 2:
                x = std::round(2 * g);
                break;  // many ties
            case 3:
                x = std::round(g) * 1e-3f;
                break;  // nearly flat
            case 4:
                x = 30 * g;
                break;  // most weights are 0
            case 5:
                x = g * 1e30f;
                break;
            case 6:
                x = rng() % 3 == 0 ? -kInf : 3 * g;
                break;
            default:
                x = 3 * g - 100;
        }
    }
    if (rng() % 10 == 0) l[rng() % n] = kNaN;
    if (rng() % 40 == 0) l[rng() % n] = kInf;
    if (rng() % 100 == 0) std::fill(l.begin(), l.end(), -kInf);
    if (rng() % 20 == 0) std::fill(l.begin(), l.end(), 1.5f);
    return l;
}

OracleRow random_row(std::mt19937_64& rng, size_t n) {
    OracleRow r;
    std::uniform_real_distribution<double> uniform;
    const auto id = [&] { return static_cast<int32_t>(rng() % n); };
    const auto one_of = [&](int k) { return rng() % static_cast<uint64_t>(k) == 0; };
    r.logits = random_logits(rng, n);
    SamplingParams& p = r.params;
    const double temperatures[] = {0, 1e-6, 2e-5, 0.01, 0.3, 0.7, 1, 1, 1.3, 2};
    p.temperature = temperatures[rng() % 10];
    if (one_of(2)) p.top_k = static_cast<int64_t>(one_of(3) ? rng() % (2 * n) : rng() % 10);
    if (one_of(2)) p.top_p = one_of(4) ? 0.5 : std::max(1e-9, uniform(rng));
    if (one_of(3)) p.min_p = one_of(4) ? 1.0 : uniform(rng) * uniform(rng);
    if (one_of(3)) p.repetition_penalty = 0.5 + uniform(rng) * 1.5;
    if (one_of(3)) p.frequency_penalty = uniform(rng) * 4 - 2;
    if (one_of(3)) p.presence_penalty = uniform(rng) * 4 - 2;
    for (uint64_t i = rng() % 12; i > 0; --i) r.prompt.push_back(id());
    for (uint64_t i = rng() % 12; i > 0; --i) r.output.push_back(id());
    if (one_of(3)) {
        std::set<int32_t> used;
        for (int i = 0; i < 5; ++i) {
            const int32_t v = id();
            if (used.insert(v).second) p.logit_bias.emplace_back(v, uniform(rng) * 200 - 100);
        }
    }
    if (one_of(6)) {
        p.allowed_token_ids.emplace();
        for (uint64_t i = 1 + rng() % 20; i > 0; --i) p.allowed_token_ids->push_back(id());
    }
    if (one_of(4)) {
        p.bad_words = {{id()}, {id(), id()}};
        if (r.output.size() >= 2)
            p.bad_words.push_back({r.output.end()[-2], r.output.back(), id()});
    }
    if (one_of(4)) {
        p.min_tokens = static_cast<int64_t>(rng() % 16);
        p.stop_token_ids = {id(), id()};
    }
    r.eos_ids = {id()};
    if (one_of(4)) {
        r.grammar_allows.emplace(n);
        const uint64_t density = 1 + rng() % 8;
        for (size_t v = 0; v < n; ++v) (*r.grammar_allows)[v] = one_of(static_cast<int>(density));
    }
    p.logprobs = static_cast<int>(rng() % 6);
    p.logprob_mode = one_of(2) ? LogprobMode::kProcessed : LogprobMode::kRaw;
    r.position = static_cast<uint32_t>(rng());
    r.sub_sequence = static_cast<uint32_t>(rng() % 4);
    r.stream = static_cast<uint32_t>(rng() % 2);
    r.seed = rng();
    return r;
}

/// Everything sample() and support() say about a row, against the oracle.
void expect_oracle(const OracleRow& r, const RowKernels& kernels, SamplerWorkspace& ws) {
    const size_t n = r.logits.size();
    ASSERT_TRUE(r.params.validate(static_cast<int64_t>(n)).ok())
        << r.params.validate(static_cast<int64_t>(n)).to_string();
    const Sampler sampler(static_cast<int64_t>(n), r.eos_ids, kernels);
    const RowPlan plan(r.params);
    TokenHistory history;
    history.set_prompt(r.prompt);
    for (const int32_t t : r.output) history.append(t);
    std::vector<int32_t> mask((n + 31) / 32, -1);  // bits beyond the vocabulary must not matter
    SampleRow row;
    row.logits = r.logits.data();
    row.plan = &plan;
    row.history = &history;
    row.position = r.position;
    row.seed = r.seed;
    row.sub_sequence = r.sub_sequence;
    row.stream = static_cast<NoiseStream>(r.stream);
    if (r.grammar_allows) {
        for (size_t v = 0; v < n; ++v) {
            if (!(*r.grammar_allows)[v]) {
                mask[v / 32] = static_cast<int32_t>(static_cast<uint32_t>(mask[v / 32]) &
                                                    ~(uint32_t{1} << (v % 32)));
            }
        }
        row.grammar_mask = mask.data();
    }
    const OracleResult want = Oracle::run(r);
    const SampleResult got = sampler.sample(row, ws);
    EXPECT_EQ(sampler.support(row, ws), want.support);
    ASSERT_EQ(got.token, want.token);
    EXPECT_EQ(got.empty_mask, want.token < 0);
    EXPECT_EQ(got.nan_count, std::count_if(r.logits.begin(), r.logits.end(), [](float x) {
                  return std::isnan(x);
              }));
    if (want.token < 0) return;
    const auto near = [](double a, long double b) {
        return a == static_cast<double>(b) ||
               std::fabs(a - static_cast<double>(b)) <= 2e-8 + 1e-12 * std::fabs(a);
    };
    EXPECT_TRUE(near(got.logprob, want.logprobs[static_cast<size_t>(want.token)]))
        << got.logprob << " against " << want.logprobs[static_cast<size_t>(want.token)];
    for (size_t i = 0; i < got.top_logprobs.size(); ++i) {
        const TokenLogprob& t = got.top_logprobs[i];
        EXPECT_TRUE(near(t.logprob, want.logprobs[static_cast<size_t>(t.token)]))
            << i << ": " << t.logprob << " against " << want.logprobs[static_cast<size_t>(t.token)];
        if (i == 0) continue;
        const int32_t before = got.top_logprobs[i - 1].token;
        const float l0 = want.logits[static_cast<size_t>(before)];
        const float l1 = want.logits[static_cast<size_t>(t.token)];
        EXPECT_TRUE(l0 > l1 || (l0 == l1 && before < t.token)) << i;
    }
    const auto possible = std::count_if(
        want.logprobs.begin(), want.logprobs.end(), [](long double x) { return std::isfinite(x); });
    if (std::isfinite(*std::max_element(r.logits.begin(), r.logits.end(), [](float a, float b) {
            return std::isnan(a) || a < b;
        }))) {
        EXPECT_EQ(static_cast<int64_t>(got.top_logprobs.size()),
                  std::min<int64_t>(*r.params.logprobs, possible));
    }
}

TEST(Sampler, EqualsTheOracleOnRandomParameters) {
    std::mt19937_64 rng(test_seed());
    SamplerWorkspace ws;
    const auto kernels = all_kernels();
    for (int i = 0; i < 10000 && !HasFailure(); ++i) {
        SCOPED_TRACE(i);
        const OracleRow row = random_row(rng, 5 + rng() % 300);
        expect_oracle(row, *kernels[static_cast<size_t>(i) % kernels.size()], ws);
    }
}

TEST(Sampler, EqualsTheOracleOnLongRows) {  // the guess of top_k, both Gumbel paths, the buckets
    std::mt19937_64 rng(test_seed());
    SamplerWorkspace ws;
    const auto kernels = all_kernels();
    for (int i = 0; i < 150 && !HasFailure(); ++i) {
        SCOPED_TRACE(i);
        OracleRow row = random_row(rng, 4096 + rng() % 3000);
        row.params.logprob_mode = LogprobMode::kRaw;  // the oracle's processed mode is quadratic
        expect_oracle(row, *kernels[static_cast<size_t>(i) % kernels.size()], ws);
    }
}

TEST(Sampler, AMisleadingSampleDoesNotShortenTopK) {  // strong tokens exactly where the guess looks
    std::mt19937_64 rng(test_seed());
    OracleRow row;
    for (size_t v = 0; v < 8192; ++v) {
        row.logits.push_back((v % 8 == 0 ? 10.0f : 0.0f) +
                             static_cast<float>(rng() % 1000) * 1e-3f);
    }
    row.params.top_k = 2000;
    row.params.logprobs = 2;
    SamplerWorkspace ws;
    expect_oracle(row, row_kernels(), ws);
}

TEST(Sampler, FollowsSoftmaxOverSeeds) {  // chi-square with 49 degrees of freedom
    std::mt19937_64 rng(test_seed());
    std::normal_distribution<float> normal(0, 1.5f);
    constexpr int kTokens = 50, kSeeds = 100000;
    for (const double temperature : {0.7, 1.0}) {
        Given g;
        g.params.temperature = temperature;
        for (int v = 0; v < kTokens; ++v) g.logits.push_back(normal(rng));
        std::vector<double> p;
        for (const float l : g.logits) p.push_back(std::exp(l / temperature));
        const double sum = std::accumulate(p.begin(), p.end(), 0.0);
        std::vector<int> counts(kTokens);
        for (int s = 0; s < kSeeds; ++s) {
            g.seed = static_cast<uint64_t>(s);
            ++counts[static_cast<size_t>(sample(g).token)];
        }
        double chi2 = 0;
        for (size_t v = 0; v < p.size(); ++v) {
            const double want = kSeeds * p[v] / sum;
            chi2 += (counts[v] - want) * (counts[v] - want) / want;
        }
        EXPECT_LT(chi2, 98.0) << "p < 4e-5 at temperature " << temperature;  // 99.996 % quantile
        EXPECT_GT(chi2, 19.0);  // a fit this good would be as suspicious
    }
}

TEST(Sampler, PositionsAndSubSequencesDrawIndependently) {
    constexpr int kDraws = 40000;
    Given g;
    g.logits = {0.0f, 0.0f};
    int both = 0, first = 0;
    for (int i = 0; i < kDraws; ++i) {
        g.position = static_cast<uint32_t>(i);
        g.sub_sequence = 0;
        const int a = sample(g).token;
        g.sub_sequence = 1;
        const int b = sample(g).token;
        first += a;
        both += a == b ? 1 : 0;
    }
    EXPECT_NEAR(first, kDraws / 2, 5 * 100);
    EXPECT_NEAR(both, kDraws / 2, 5 * 100);
}

TEST(Sampler, GreedyTakesTheLowestIdOnATie) {
    Given g;
    g.params.temperature = 0;
    g.logits = {1, 3, 2, 3, 3};
    EXPECT_EQ(sample(g).token, 1);
    g.logits = {-0.0f, 0.0f};
    EXPECT_EQ(sample(g).token, 0);
    for (const double t : {1e-6, 9.9e-6, 1e-45}) {
        g.params.temperature = t;
        g.logits = {0, 1e-6f, 0};
        EXPECT_EQ(sample(g).token, 1);
    }
}

TEST(Sampler, NaNIsMaskedAndFlagged) {
    Given g;
    g.logits = {kNaN, 1, kNaN, 0};
    for (uint64_t s = 0; s < 50; ++s) {
        g.seed = s;
        const SampleResult r = sample(g);
        EXPECT_EQ(r.nan_count, 2);
        EXPECT_TRUE(r.token == 1 || r.token == 3);
    }
    g.logits = {kNaN, kNaN};
    EXPECT_TRUE(sample(g).empty_mask);
    EXPECT_EQ(sample(g).nan_count, 2);
    g.params.temperature = 0;
    EXPECT_TRUE(sample(g).empty_mask);
    g.params.allowed_token_ids = {1};  // a masked NaN is still reported
    EXPECT_EQ(sample(g).nan_count, 2);
}

TEST(Sampler, NothingLeftIsAnOutcomeNotAUniformDraw) {
    Given g;
    g.logits.assign(70, -kInf);
    g.params.logprobs = 3;
    const SampleResult r = sample(g);
    EXPECT_TRUE(r.empty_mask);
    EXPECT_EQ(r.token, -1);
    g.logits.assign(70, 0.0f);
    g.params.allowed_token_ids = {4};
    g.params.bad_words = {{4}};
    EXPECT_TRUE(sample(g).empty_mask);
}

TEST(Sampler, PlusInfinityWins) {
    Given g;
    g.logits = {1, kInf, 2, kInf};
    g.params.top_p = 0.3;
    g.params.logprobs = 2;
    const SampleResult r = sample(g);
    EXPECT_EQ(r.token, 1);
    EXPECT_DOUBLE_EQ(r.logprob, -std::log(2.0));
    EXPECT_DOUBLE_EQ(r.top_logprobs[1].logprob, -std::log(2.0));
}

TEST(Sampler, BiasNeverRevivesAMaskedToken) {
    Given g;
    g.logits = {-kInf, -5, -6};
    g.params.logit_bias = {{0, 100}};
    g.params.temperature = 0;
    EXPECT_EQ(sample(g).token, 1);
    g.params.allowed_token_ids = {2, 0};
    EXPECT_EQ(sample(g).token, 2);
}

TEST(Sampler, APenaltyIsNotAMask) {  // an edit that would overflow fp32 stays finite
    Given g;
    g.logits = {-3e38f, -kInf};
    g.params.repetition_penalty = 1e300;
    const std::vector<int32_t> prompt{0};
    g.history.set_prompt(prompt);
    EXPECT_EQ(sample(g).token, 0);
}

TEST(Sampler, MinTokensCountsTokensAndBansEosAndStopIds) {
    SamplingParams params;
    params.temperature = 0;
    params.min_tokens = 2;
    params.stop_token_ids = {1};
    const RowPlan plan(params);
    const Sampler sampler(4, {0});
    const std::vector<float> logits{9, 8, 7, 6};
    TokenHistory history;
    SampleRow row;
    row.logits = logits.data();
    row.plan = &plan;
    row.history = &history;
    SamplerWorkspace ws;
    EXPECT_EQ(sampler.sample(row, ws).token, 2);
    history.append(2);
    EXPECT_EQ(sampler.sample(row, ws).token, 2);
    history.append(2);
    EXPECT_EQ(sampler.sample(row, ws).token, 0);
    history.truncate(1);  // a rejected draft does not count
    EXPECT_EQ(sampler.sample(row, ws).token, 2);
}

TEST(Sampler, CountsOfRejectedDraftsAreUndone) {
    std::mt19937_64 rng(test_seed());
    TokenHistory with_drafts, plain;
    const std::vector<int32_t> prompt{1, 2, 3};
    with_drafts.set_prompt(prompt);
    plain.set_prompt(prompt);
    Given g;
    g.params.frequency_penalty = 0.7;
    g.params.presence_penalty = 0.4;
    g.params.repetition_penalty = 1.2;
    for (int step = 0; step < 50; ++step) {
        const size_t committed = with_drafts.output().size();
        for (int d = 0; d < 5; ++d) with_drafts.append(static_cast<int32_t>(rng() % 20));
        with_drafts.truncate(committed);
        const auto token = static_cast<int32_t>(rng() % 20);
        with_drafts.append(token);
        plain.append(token);
        g.logits = random_logits(rng, 20);
        g.seed = rng();
        g.history = with_drafts;
        const SampleResult a = sample(g);
        g.history = plain;
        EXPECT_EQ(a.token, sample(g).token);
    }
}

TEST(Sampler, BadWordsLookAtTheOutputAlone) {
    Given g;
    g.params.temperature = 0;
    g.params.bad_words = {{5, 6, 1}};
    g.logits = {0, 2, 1};
    g.logits.resize(10, -1);
    const std::vector<int32_t> prompt{5, 6};
    g.history.set_prompt(prompt);
    EXPECT_EQ(sample(g).token, 1);
    g.history.append(5);
    g.history.append(6);
    EXPECT_EQ(sample(g).token, 2);
    g.history.append(2);
    EXPECT_EQ(sample(g).token, 1);
}

TEST(Sampler, RawLogprobsIgnoreEverythingThatActsLater) {
    Given g;
    g.logits = {1, 2, 3};
    g.params.logprobs = 1;
    g.params.temperature = 0.1;
    g.params.allowed_token_ids = {0};
    g.params.logit_bias = {{0, -50}};
    const SampleResult r = sample(g);
    const double z = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
    EXPECT_EQ(r.token, 0);
    EXPECT_NEAR(r.logprob, 1 - z, 1e-11);
    EXPECT_EQ(r.top_logprobs[0].token, 2);
    EXPECT_NEAR(r.top_logprobs[0].logprob, 3 - z, 1e-11);
    g.params.logprob_mode = LogprobMode::kProcessed;
    EXPECT_NEAR(sample(g).logprob, 0, 1e-11);
}

TEST(Sampler, ScoreReportsPromptLogprobs) {
    const std::vector<float> logits{1, 2, 3, 2};
    const Sampler sampler(4, {});
    SamplerWorkspace ws;
    const SampleResult r = sampler.score(logits.data(), 0, 3, ws);
    double z = 0;
    for (const float l : logits) z += std::exp(static_cast<double>(l));
    EXPECT_NEAR(r.logprob, 1 - std::log(z), 1e-11);
    ASSERT_EQ(r.top_logprobs.size(), 3u);
    EXPECT_EQ(r.top_logprobs[0].token, 2);
    EXPECT_EQ(r.top_logprobs[1].token, 1);  // tie by id
    EXPECT_EQ(r.top_logprobs[2].token, 3);
}

TEST(Sampler, CoupledDraftsAgreeWhenTheLogitsAgree) {  // same seed and position: same noise
    std::mt19937_64 rng(test_seed());
    int agree = 0;
    constexpr int kRounds = 2000;
    for (int i = 0; i < kRounds; ++i) {
        Given target;
        target.logits = random_logits(rng, 60);
        for (float& l : target.logits) l = std::isfinite(l) ? std::clamp(l, -4.0f, 4.0f) : -1.0f;
        target.seed = rng();
        Given draft = target;
        EXPECT_EQ(sample(target).token, sample(draft).token);
        std::normal_distribution<float> noise(0, 0.1f);
        for (float& l : draft.logits) l += noise(rng);
        agree += sample(target).token == sample(draft).token ? 1 : 0;
    }
    EXPECT_GT(agree, kRounds * 85 / 100);
}

}  // namespace
}  // namespace deepinfer
