// The engine's law: ids and log-probability bits of a request are those of the request alone, on
// the tiny checkpoint `nano` (window 16, so a hit of two blocks is already worth its exact replay).
#include <gtest/gtest.h>

#include <set>

#include "properties/engine_matrix.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kVocab = 2048;

std::vector<Request> quick_requests() {
    return matrix_requests(kVocab, 20, 300, 8);
}

/// Every request alone in an engine of its own, one thread, one chunk, plain loop, no cache.
const std::vector<std::string>& alone() {
    static const std::vector<std::string> digests = [] {
        MatrixCase c;
        c.batch = 4;
        c.budget = 2048;
        c.threads = 1;
        c.async = c.caching = false;
        std::vector<std::string> all;
        for (const Request& r : quick_requests()) {
            all.push_back(run_matrix_case("nano", c, {r}).digests[0]);
        }
        return all;
    }();
    return digests;
}

void expect_as_alone(const MatrixCase& c) {
    SCOPED_TRACE(c.name());
    const MatrixResult r = run_matrix_case("nano", c, quick_requests());
    ASSERT_EQ(r.digests.size(), alone().size());
    for (size_t i = 0; i < r.digests.size(); ++i) {
        EXPECT_EQ(r.digests[i], alone()[i]) << "request " << i;
    }
    if (c.preempt > 0 || c.kv_cache_bytes > 0) {
        EXPECT_GT(r.preemptions, 0);
    }
    if (c.repeat && c.caching) {
        EXPECT_GT(r.hit_tokens, 0);
    }
}

TEST(EngineDeterminism, BatchDoesNotMatter) {
    for (const int64_t batch : {3, 7, 16, 48}) {
        MatrixCase c;
        c.batch = batch;
        expect_as_alone(c);
    }
}

TEST(EngineDeterminism, ChunkingDoesNotMatter) {
    for (const int64_t budget : {7, 64, 2048}) {
        MatrixCase c;
        c.budget = budget;
        c.batch = budget == 7 ? 7 : 16;
        expect_as_alone(c);
    }
}

TEST(EngineDeterminism, ThreadsAndLoopDoNotMatter) {
    for (const int threads : {1, 2}) {
        for (const bool async : {false, true}) {
            MatrixCase c;
            c.threads = threads;
            c.async = async;
            expect_as_alone(c);
        }
    }
}

TEST(EngineDeterminism, PreemptionDoesNotMatter) {
    for (const bool async : {false, true}) {
        MatrixCase c;
        c.async = async;
        c.preempt = 0.2;
        expect_as_alone(c);
        c.caching = false;
        expect_as_alone(c);
    }
}

TEST(EngineDeterminism, PrefixHitDoesNotMatter) {
    for (const int64_t budget : {64, 2048}) {
        MatrixCase c;
        c.budget = budget;
        c.repeat = true;
        expect_as_alone(c);
    }
}

TEST(EngineDeterminism, SeedsAndSubSequencesDiffer) {
    std::vector<Request> requests(2);
    for (size_t i = 0; i < 2; ++i) {
        requests[i].prompt_token_ids = random_ids(5, 30, kVocab);
        requests[i].sampling.max_tokens = 12;
        requests[i].sampling.ignore_eos = true;
        requests[i].sampling.seq_seed = i;
        requests[i].sampling.n = 3;
    }
    EngineLab lab(lab_config("nano"));
    const std::vector<Completion> done = lab.run(requests);
    std::set<std::vector<int32_t>> texts;
    for (const Completion& c : done) {
        for (const CompletionChoice& choice : c.choices) texts.insert(choice.token_ids);
    }
    EXPECT_EQ(texts.size(), 6u);
}

/// After token t only ids of the same residue mod 3 are allowed, and never t itself.
class ResidueConstraint final : public TokenConstraint {
  public:
    std::vector<uint32_t> mask() override {
        std::vector<uint32_t> words(kVocab / 32, 0);
        for (int32_t t = 0; t < kVocab; ++t) {
            if (t % 3 == accepted_.back() % 3 && t != accepted_.back())
                words[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
        }
        return words;
    }
    bool accept(int32_t token) override {
        if (token % 3 != accepted_.back() % 3 || token == accepted_.back()) return false;
        accepted_.push_back(token);
        return true;
    }
    void rollback(int count) override {
        accepted_.resize(accepted_.size() - static_cast<size_t>(count));
    }

  private:
    std::vector<int32_t> accepted_ = {4};
};

TEST(EngineDeterminism, MasksActOnTheirRowsAloneInBothLoops) {
    const std::vector<Request> requests = quick_requests();
    std::set<std::string> hashes;
    for (const bool async : {false, true}) {
        EngineConfig c = lab_config("nano");
        c.async_scheduling = async;
        EngineLab lab(c);
        Request masked = requests[1];
        masked.sampling.max_tokens = 20;
        const uint64_t ours = lab.submit(masked, std::make_shared<ResidueConstraint>()).value();
        std::vector<uint64_t> others;
        for (const Request& r : requests) others.push_back(lab.submit(r).value());
        lab.run_until_idle();
        const std::vector<int32_t>& ids = lab.completion(ours).choices[0].token_ids;
        ASSERT_EQ(ids.size(), 20u);
        for (size_t i = 0; i < ids.size(); ++i) {
            EXPECT_EQ(ids[i] % 3, 1);
            EXPECT_NE(ids[i], i == 0 ? 4 : ids[i - 1]);
        }
        hashes.insert(digest(lab.completion(ours)));
        for (size_t i = 0; i < others.size(); ++i) {
            EXPECT_EQ(digest(lab.completion(others[i])), alone()[i]) << "request " << i;
        }
    }
    EXPECT_EQ(hashes.size(), 1u);
}

}  // namespace
}  // namespace deepinfer::testing
