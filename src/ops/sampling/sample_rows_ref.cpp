#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/sampling/sample_rows.h"
#include "ops/sampling/sampling_math.h"

namespace deepinfer {
namespace {

namespace sm = sampling_math;

SampleChoice sample_row(const float* logits, int64_t vocab, const SampleRequest& r) {
    SampleChoice choice;
    float max = -std::numeric_limits<float>::infinity();
    for (int64_t v = 0; v < vocab; ++v) {
        choice.nan_count += logits[v] != logits[v] ? 1 : 0;
        if (logits[v] > max) {
            max = logits[v];
            choice.token = static_cast<int32_t>(v);
        }
    }
    if (choice.token < 0 || r.greedy != 0 || std::isinf(max)) return choice;
    const NoiseKey key{
        r.seed, r.position, static_cast<uint32_t>(NoiseStream::kTarget), r.sub_sequence};
    double best = -std::numeric_limits<double>::infinity();
    for (int64_t v = 0; v < vocab; ++v) {
        if (!(logits[v] > -std::numeric_limits<float>::infinity())) continue;
        const double score = sm::gumbel_score(logits[v],
                                              static_cast<double>(max),
                                              r.inv_temperature,
                                              sm::gumbel_noise(key, static_cast<uint32_t>(v)));
        if (score > best) {
            best = score;
            choice.token = static_cast<int32_t>(v);
        }
    }
    return choice;
}

}  // namespace

void sample_rows_ref(Stream& stream, const Tensor& logits, const Tensor& requests, Tensor choices) {
    DI_CHECK(logits.dtype == DType::kF32 && requests.dense() && choices.dense());
    DI_CHECK_EQ(requests.bytes(), requests.dim(0) * static_cast<int64_t>(sizeof(SampleRequest)));
    DI_CHECK_EQ(choices.bytes(), requests.dim(0) * static_cast<int64_t>(sizeof(SampleChoice)));
    parallel_for(stream, requests.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            SampleRequest r;
            std::memcpy(&r, requests.ptr<uint8_t>() + i * 32, sizeof r);
            DI_CHECK(r.row >= 0 && r.row < logits.dim(0));
            const SampleChoice c = sample_row(logits.row<float>(r.row), logits.dim(1), r);
            std::memcpy(choices.ptr<uint8_t>() + i * 8, &c, sizeof c);
        }
    });
}

}  // namespace deepinfer
