// The whole matrix on the demonstration checkpoint: 200 prompts, {batch} × {budget} × {threads} ×
// {preemption} × {cold, prefix hit}. Long: label "full".
#include <gtest/gtest.h>

#include "properties/engine_matrix.h"

namespace deepinfer::testing {
namespace {

TEST(EngineDeterminismFull, DemoMatrixGivesOneDigestPerRequest) {
    // Long prompts of 1100 ids: a hit of eight blocks, just long enough for this geometry's exact
    // replay.
    const std::vector<Request> few = matrix_requests(4000, 8, 1100, 8);
    std::vector<Request> requests = few;
    for (Request& r : matrix_requests(4000, 200, 24, 8)) requests.push_back(std::move(r));

    MatrixCase base;
    base.batch = 1;
    base.budget = 1 << 11;
    base.threads = 1;
    base.async = base.caching = false;
    const std::vector<std::string> want = run_matrix_case("demo", base, requests).digests;

    for (const int64_t batch : {1, 7, 16, 48}) {
        for (const int64_t budget : {7, 64, 2048}) {
            MatrixCase c;
            c.batch = batch;
            c.budget = budget;
            c.threads = batch % 2 == 0 ? 2 : 1;
            c.preempt = batch == 16 && budget > 7 ? 0.02 : 0;
            c.repeat = batch == 48 && budget == 2048;
            SCOPED_TRACE(c.name());
            const MatrixResult r = run_matrix_case("demo", c, requests);
            EXPECT_EQ(r.digests, want);
            if (c.repeat) {
                EXPECT_GT(r.hit_tokens, 0);
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer::testing
