// The law of coupled speculation: ids and log-probability bits are those of decoding without
// drafts, whoever drafts, however many, whatever happens around. On the tiny checkpoint `nano`.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "properties/engine_matrix.h"
#include "properties/spec_drafters.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kVocab = 2048;

std::vector<Request> requests() {
    return matrix_requests(kVocab, 9, 300, 10);
}

/// Digests without drafts: plain loop, no cache, one thread.
const std::vector<std::string>& without_drafts() {
    static const std::vector<std::string> digests = [] {
        MatrixCase c;
        c.threads = 1;
        c.async = c.caching = false;
        return run_matrix_case("nano", c, requests()).digests;
    }();
    return digests;
}

void expect_same(const MatrixCase& c) {
    SCOPED_TRACE(c.name());
    const MatrixResult r = run_matrix_case("nano", c, requests());
    EXPECT_EQ(r.digests, without_drafts());
    EXPECT_GT(r.draft_rows, 0);
    if (c.preempt > 0) {
        EXPECT_GT(r.preemptions, 0);
    }
    if (c.repeat) {
        EXPECT_GT(r.hit_tokens, 0);
    }
}

TEST(EngineSpeculation, DraftsOfAnyLengthInAnyBatchChangeNothing) {
    for (const auto& [nextn, batch] : {std::pair(1, 7), {2, 48}, {3, 1}, {4, 16}, {5, 3}}) {
        MatrixCase c;
        c.nextn = nextn;
        c.batch = batch;
        c.async = nextn % 2 == 1;
        expect_same(c);
    }
}

TEST(EngineSpeculation, PreemptionAndTinyBudgetsChangeNothing) {
    for (const bool async : {false, true}) {
        MatrixCase c;
        c.nextn = 5;
        c.async = async;
        c.preempt = 0.2;
        expect_same(c);
    }
    MatrixCase c;
    c.nextn = 5;
    c.batch = 7;
    c.budget = 9;
    expect_same(c);
}

/// Drafts come and go: what runs meanwhile leaves their windows behind, copies of slots too.
TEST(EngineSpeculation, StepsThatLeaveTheDraftsWindowsBehindChangeNothing) {
    for (const uint64_t steps : {3, 40}) {
        for (const bool async : {false, true}) {
            MatrixCase c;
            c.nextn = 3;
            c.no_drafts = steps;
            c.async = async;
            c.preempt = steps == 3 ? 0.1 : 0;
            c.repeat = steps == 40;
            c.budget = 64;
            expect_same(c);
        }
    }
}

TEST(EngineSpeculation, PrefixHitChangesNothing) {
    MatrixCase c;
    c.nextn = 3;
    c.repeat = true;
    c.budget = 64;
    expect_same(c);
}

/// Some sequences of every kind: short and longer than the window, greedy and sampled.
std::vector<Request> drafted_requests(int64_t count, int64_t new_tokens) {
    std::vector<Request> all;
    for (int64_t i = 0; i < count; ++i) {
        Request r;
        r.prompt_token_ids = random_ids(static_cast<uint64_t>(40 + i), 13 + i, kVocab);
        r.sampling.max_tokens = new_tokens + i % 2;
        r.sampling.ignore_eos = true;
        r.sampling.logprobs = 1;
        r.sampling.seq_seed = 3;
        r.sampling.temperature = i % 2 == 0 ? 0 : 0.8;
        all.push_back(r);
    }
    return all;
}

TEST(EngineSpeculation, AnyNumberOfRightDraftsAtAnyPosition) {
    const std::vector<Request> all = drafted_requests(4, 36);
    std::vector<Completion> plain;
    {
        EngineLab lab(lab_config("nano"));
        plain = lab.run(all);
    }
    const auto oracle = std::make_shared<const Oracle>(all, plain);
    const auto expect_plain = [&](int nextn, const DraftOverride& drafts, const std::string& what) {
        EngineConfig c = lab_config("nano");
        c.nextn = nextn;
        EngineHooks hooks;
        hooks.drafts = drafts;
        EngineLab lab(c, hooks);
        const std::vector<Completion> done = lab.run(all);
        for (size_t i = 0; i < all.size(); ++i) {
            EXPECT_EQ(digest(done[i]), digest(plain[i])) << what << ", request " << i;
        }
        return lab.scheduler().stats();
    };
    int64_t slowest = 0;
    for (int j = 0; j <= 5; ++j) {
        const SchedulerStats s =
            expect_plain(5,
                         right_then_wrong(
                             oracle, [j](const SlotState&) { return j; }, kVocab),
                         std::to_string(j) + " right drafts");
        // j right drafts a round: every round gives j + 1 tokens, so rounds = ceil(tokens / (j+1)).
        int64_t rounds = 0;
        for (const Completion& c : plain) {
            const auto n = static_cast<int64_t>(c.choices[0].token_ids.size()) - 1;
            rounds += (n + j) / (j + 1);
        }
        EXPECT_EQ(s.decode_tokens, rounds) << j;
        if (j == 0) slowest = s.decode_tokens;
        if (j == 5) {
            EXPECT_LE(s.decode_tokens * 5, slowest);
        }
    }
    // j right drafts where the round begins at an even (odd) position, some or none elsewhere:
    // every residue of a group of two rows is left by every number of accepted and rejected ones.
    for (const size_t parity : {0u, 1u}) {
        for (int j = 0; j <= 5; ++j) {
            const auto count = [parity, j](const SlotState& s) {
                return s.tokens.size() % 2 == parity ? j : (j + 3) % 6;
            };
            expect_plain(5,
                         right_then_wrong(oracle, count, kVocab),
                         std::to_string(j) + " right drafts, parity " + std::to_string(parity));
        }
    }
    const auto mixed = [](const SlotState& s) {
        return static_cast<int>((s.tokens.size() * 7 + s.request * 3) % 6);
    };
    expect_plain(5, right_then_wrong(oracle, mixed, kVocab), "a changing number of right drafts");
    const auto rarely = [](const SlotState& s) { return s.tokens.size() % 3 == 0 ? -1 : 0; };
    expect_plain(3, right_then_wrong(oracle, rarely, kVocab), "own drafts between wrong ones");
    expect_plain(5, random_drafts(kVocab), "random drafts");
    expect_plain(
        5,
        [](const SlotState& s, Proposal* p) {
            p->tokens.resize(s.tokens.size() % (p->tokens.size() + 1));
        },
        "fewer drafts than asked for");
}

/// After token t only ids of the same residue mod 3 are allowed, and never t itself; after an id
/// below 30 only EOS, if `ends`.
class ResidueForm final : public TokenConstraint {
  public:
    std::vector<uint32_t> mask() override {
        std::vector<uint32_t> words(kVocab / 32, 0);
        for (int32_t t = 0; t < kVocab; ++t) {
            if (fits(t)) words[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
        }
        return words;
    }
    bool accept(int32_t token) override {
        if (!fits(token)) return false;
        accepted_.push_back(token);
        return true;
    }
    void rollback(int count) override {
        accepted_.resize(accepted_.size() - static_cast<size_t>(count));
    }

  private:
    bool fits(int32_t t) const { return t % 3 == accepted_.back() % 3 && t != accepted_.back(); }
    std::vector<int32_t> accepted_ = {4};
};

TEST(EngineSpeculation, FormsHoldForEveryRowAndDeadDraftsEndThem) {
    const std::vector<Request> all = drafted_requests(4, 16);
    const auto run = [&](bool async, int nextn, const DraftOverride& drafts) {
        EngineConfig c = lab_config("nano");
        c.async_scheduling = async;
        c.nextn = nextn;
        EngineHooks hooks;
        hooks.drafts = drafts;
        EngineLab lab(c, hooks);
        std::vector<uint64_t> numbers;
        for (const Request& r : all) {
            const bool masked = numbers.size() % 2 == 0;
            numbers.push_back(
                lab.submit(r, masked ? std::make_shared<ResidueForm>() : nullptr).value());
        }
        lab.run_until_idle();
        std::vector<Completion> done;
        for (const uint64_t n : numbers) done.push_back(lab.completion(n));
        return done;
    };
    const std::vector<Completion> plain = run(true, 0, {});
    for (const size_t i : {0u, 2u}) {
        for (const int32_t id : plain[i].choices[0].token_ids) EXPECT_EQ(id % 3, 1);
    }
    const auto oracle = std::make_shared<const Oracle>(all, plain);
    const auto three = right_then_wrong(
        oracle, [](const SlotState&) { return 3; }, kVocab);
    for (const bool async : {false, true}) {
        for (const DraftOverride& drafts : {DraftOverride(), three, random_drafts(kVocab)}) {
            const std::vector<Completion> done = run(async, 5, drafts);
            for (size_t i = 0; i < done.size(); ++i) {
                EXPECT_EQ(digest(done[i]), digest(plain[i])) << "request " << i;
            }
        }
    }
}

TEST(EngineSpeculation, BudgetsFromTheCostModelChangeNothing) {
    for (const char* budget : {"model", "threshold:0.4", "full"}) {
        MatrixCase c;
        c.nextn = 5;
        c.varlen = true;
        c.spec_budget = budget;
        c.preempt = budget[0] == 'm' ? 0.1 : 0;
        expect_same(c);
    }
}

/// Requests that end by a stop id, a stop string, the length or EOS, with drafts that are right.
TEST(EngineSpeculation, EndsAreExact) {
    std::vector<Request> all = drafted_requests(6, 30);
    std::vector<Completion> plain;
    {
        EngineLab lab(lab_config("nano"));
        const std::vector<Completion> free = lab.run(all);
        for (size_t i = 0; i < all.size(); ++i) {
            const std::vector<int32_t>& ids = free[i].choices[0].token_ids;
            SamplingParams& p = all[i].sampling;
            const size_t at = 4 + i * 3;
            if (i % 3 == 0) p.stop_token_ids = {ids[at]};
            if (i % 3 == 1) {
                const std::vector<int32_t> piece(ids.begin() + static_cast<int64_t>(at),
                                                 ids.begin() + static_cast<int64_t>(at) + 2);
                p.stop = {lab.parts().tokenizer->decode(piece).value()};
            }
            if (i % 3 == 2) p.max_tokens = static_cast<int64_t>(at);
            if (i == 0) p.min_tokens = 9;
            if (i == 4) p.n = 3;
        }
        EngineLab again(lab_config("nano"));
        plain = again.run(all);
    }
    const auto oracle = std::make_shared<const Oracle>(all, plain);
    for (const int right : {1, 5}) {
        EngineConfig c = lab_config("nano");
        c.nextn = 5;
        EngineHooks hooks;
        hooks.drafts = right_then_wrong(
            oracle, [right](const SlotState&) { return right; }, kVocab);
        EngineLab lab(c, hooks);
        const std::vector<Completion> done = lab.run(all);
        for (size_t i = 0; i < all.size(); ++i) {
            EXPECT_EQ(digest(done[i]), digest(plain[i])) << "request " << i;
            EXPECT_EQ(done[i].choices[0].text, plain[i].choices[0].text);
            EXPECT_EQ(done[i].choices[0].finish_reason, plain[i].choices[0].finish_reason);
            EXPECT_EQ(done[i].usage.completion_tokens, plain[i].usage.completion_tokens);
        }
    }
}

/// The other rules: greedy requests stay bitwise, sampled ones repeat, keep their parameters'
/// limits, and count their log-probabilities from their own rows.
TEST(EngineSpeculation, RejectionRulesRepeatAndKeepGreedyRequests) {
    std::vector<Request> all = drafted_requests(6, 24);
    for (size_t i = 1; i < all.size(); i += 2) {
        all[i].sampling.temperature = 1.0;
        all[i].sampling.top_k = 3;
        all[i].sampling.frequency_penalty = 0.5;
        all[i].sampling.logprobs = 4;
        all[i].sampling.logprob_mode = LogprobMode::kProcessed;
    }
    std::vector<Completion> plain;
    {
        EngineLab lab(lab_config("nano"));
        plain = lab.run(all);
    }
    std::set<std::string> sampled;
    for (const char* rule : {"rejection", "argmax", "block"}) {
        EngineConfig c = lab_config("nano");
        c.nextn = 4;
        c.spec_sampling = rule;
        c.batch_invariant = false;
        EngineLab first(c), second(c);
        const std::vector<Completion> a = first.run(all), b = second.run(all);
        EXPECT_GT(first.scheduler().stats().draft_rows, 0);
        for (size_t i = 0; i < all.size(); ++i) {
            EXPECT_EQ(digest(a[i]), digest(b[i])) << rule << ", request " << i;
            if (i % 2 == 0) {
                EXPECT_EQ(digest(a[i]), digest(plain[i])) << rule << ", request " << i;
                continue;
            }
            const CompletionChoice& choice = a[i].choices[0];
            ASSERT_EQ(choice.logprobs.size(), choice.token_ids.size());
            for (size_t t = 0; t < choice.token_ids.size(); ++t) {
                const TokenLogprobs& l = choice.logprobs[t];
                EXPECT_EQ(l.token_id, choice.token_ids[t]);
                ASSERT_LE(l.top.size(), 3u);  // top_k
                double sum = 0;
                bool chosen = false;
                for (const auto& [id, logprob] : l.top) {
                    sum += std::exp(logprob);
                    chosen = chosen || (id == l.token_id && logprob == l.logprob);
                }
                EXPECT_NEAR(sum, 1, 1e-9);
                EXPECT_TRUE(chosen) << rule << " token " << t << " lies outside top_k";
            }
            sampled.insert(digest(a[i]));
        }
    }
    EXPECT_GT(sampled.size(), 3u);  // the rules draw differently
}

}  // namespace
}  // namespace deepinfer::testing
