// The whole matrix on the demonstration checkpoint: 200 prompts, {batch 1, 7, 16, 48} × {rows of a
// step 7, 64, all} × {threads 1, 2} × {undisturbed, preempted at random} × {cold, prefix hit},
// every combination. Long: label "long"; one test a batch size.
//
// What is needless is left out, not combinations: the answer that counts is computed once, outputs
// are short, and what can hit (prompts of at least a block) runs once more in the engine that has
// just computed it, instead of the whole set twice.
#include <gtest/gtest.h>

#include <iostream>

#include "properties/engine_matrix.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kVocab = 4000, kNewTokens = 3;

/// 200 prompts, of which 50 share a block and some; and eight whose long ones share eight blocks,
/// just long enough for this geometry's exact replay.
const std::vector<Request>& prompts() {
    static const std::vector<Request> all = [] {
        std::vector<Request> r = matrix_requests(kVocab, 200, 130, kNewTokens);
        for (Request& few : matrix_requests(kVocab, 8, 1100, kNewTokens)) r.push_back(few);
        return r;
    }();
    return all;
}

/// One at a time, one thread, whole prompts, plain loop, no cache.
const std::vector<std::string>& alone() {
    static const std::vector<std::string> digests = [] {
        MatrixCase c;
        c.batch = 1;
        c.budget = 2048;
        c.threads = 1;
        c.async = c.caching = false;
        return run_matrix_case("demo", c, prompts()).digests;
    }();
    return digests;
}

class EngineDeterminismFull : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Batch,
                         EngineDeterminismFull,
                         ::testing::Values(1, 7, 16, 48),
                         ::testing::PrintToStringParamName());

TEST_P(EngineDeterminismFull, EveryCombinationGivesTheDigestsOfRequestsAlone) {
    std::vector<size_t> can_hit;
    std::vector<std::string> want_again;
    for (size_t i = 0; i < prompts().size(); ++i) {
        const Request& r = prompts()[i];
        if (r.prompt_token_ids.size() <= 128 || r.sampling.prompt_logprobs) continue;
        can_hit.push_back(i);
        want_again.push_back(alone()[i]);
    }
    ASSERT_GE(can_hit.size(), 40u);
    for (const int64_t budget : {7, 64, 2048}) {
        for (const int threads : {1, 2}) {
            for (const double preempt : {0.0, 0.05}) {
                MatrixCase c;
                c.batch = GetParam();
                c.budget = budget;
                c.threads = threads;
                c.preempt = preempt;
                c.async = threads == 2 || budget == 64;
                c.again = can_hit;
                SCOPED_TRACE(c.name());
                const MatrixResult r = run_matrix_case("demo", c, prompts());
                EXPECT_EQ(r.digests, alone());
                EXPECT_EQ(r.again, want_again);
                EXPECT_GE(r.again_hits, 128 * static_cast<int64_t>(can_hit.size()) / 2);
                if (preempt > 0) {
                    EXPECT_GT(r.preemptions, 0);
                }
                std::cout << c.name() << ": " << r.preemptions << " preemptions, " << r.again_hits
                          << " tokens hit" << std::endl;  // progress of a long test
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer::testing
