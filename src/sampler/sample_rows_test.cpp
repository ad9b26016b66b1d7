// The device's token choice (its twin) gives what the sampler gives.
#include "ops/sampling/sample_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "sampler/sampler.h"

namespace deepinfer {
namespace {

TEST(SampleRows, TwinChoosesAsTheSampler) {
    std::mt19937_64 rng(5);
    std::normal_distribution<float> normal;
    ThreadPool pool(1);
    CpuStream stream(&pool);
    for (const int64_t vocab : {1, 7, 1000, 4099}) {
        Sampler sampler(vocab, {0});
        SamplerWorkspace workspace;
        for (int round = 0; round < 24; ++round) {
            std::vector<float> logits(static_cast<size_t>(vocab));
            for (float& l : logits) {
                l = normal(rng) * 4.0f;
                if (round % 4 == 1) l = std::round(l);  // ties
                if (round % 4 == 2 && rng() % 3 == 0) l = -std::numeric_limits<float>::infinity();
                if (round % 4 == 3 && rng() % 50 == 0) l = std::numeric_limits<float>::quiet_NaN();
            }
            if (round == 20) logits[0] = std::numeric_limits<float>::infinity();
            SamplingParams params;
            params.temperature = round % 3 == 0 ? 0.0 : 0.3 * round;
            const RowPlan plan(params);
            SampleRow row;
            row.logits = logits.data();
            row.plan = &plan;
            row.seed = rng();
            row.position = static_cast<uint32_t>(rng());
            row.sub_sequence = static_cast<uint32_t>(round % 3);
            const SampleResult want = sampler.sample(row, workspace);
            SampleRequest request;
            request.greedy = plan.greedy ? 1 : 0;
            request.inv_temperature = plan.inv_temperature;
            request.seed = row.seed;
            request.position = row.position;
            request.sub_sequence = row.sub_sequence;
            SampleChoice got;
            sample_rows_ref(stream,
                            Tensor(logits.data(), DType::kF32, {1, vocab}),
                            Tensor(&request, DType::kU8, {1, 32}),
                            Tensor(&got, DType::kU8, {1, 8}));
            EXPECT_EQ(got.token, want.empty_mask ? -1 : want.token) << vocab << " round " << round;
            EXPECT_EQ(got.nan_count, want.nan_count);
        }
    }
}

}  // namespace
}  // namespace deepinfer
