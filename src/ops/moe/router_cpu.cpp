// Router: scores through linear, selection without allocations.
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_ops.h"

namespace deepinfer::cpu {
namespace {

void apply_scoring(float* s, int64_t n, float temperature, ScoringFunc func) {
    for (int64_t e = 0; e < n; ++e) s[e] /= temperature;
    switch (func) {
        case ScoringFunc::kSqrtSoftplus:
            for (int64_t e = 0; e < n; ++e)
                s[e] = std::sqrt(s[e] > 20.0f ? s[e] : std::log1p(std::exp(s[e])));
            return;
        case ScoringFunc::kSigmoid:
            for (int64_t e = 0; e < n; ++e) s[e] = 1.0f / (1.0f + std::exp(-s[e]));
            return;
        case ScoringFunc::kSoftmax: {
            const float top = *std::max_element(s, s + n);
            float sum = 0;
            for (int64_t e = 0; e < n; ++e) sum += s[e] = std::exp(s[e] - top);
            for (int64_t e = 0; e < n; ++e) s[e] /= sum;
            return;
        }
    }
}

}  // namespace

void router_scores_cpu(const Kernels& k,
                       Stream& stream,
                       const Tensor& u,
                       const WeightMatrix& gate,
                       float temperature,
                       ScoringFunc func,
                       Tensor scores) {
    DI_CHECK(scores.dtype == DType::kF32);
    linear_cpu(k, stream, u, gate, scores);
    parallel_for(
        stream, scores.dim(0), std::max<int64_t>(1, 128 / gate.n), [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t)
                apply_scoring(scores.row<float>(t), gate.n, temperature, func);
        });
}

void router_topk_cpu(const Kernels&,
                     Stream& stream,
                     const Tensor& scores,
                     const Tensor& bias,
                     const Tensor& bias_vl,
                     const Tensor& image_rows,
                     Tensor ids) {
    const int64_t num_experts = scores.dim(1), k = ids.dim(1);
    DI_CHECK(scores.dtype == DType::kF32 && bias.dtype == DType::kF32 && ids.dtype == DType::kI32);
    DI_CHECK_EQ(bias.dim(0), num_experts);
    DI_CHECK_LE(k, num_experts);
    parallel_for(stream, scores.dim(0), 8, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const bool image = image_rows && image_rows.ptr<uint8_t>()[t] != 0;
            const float* b = (image ? bias_vl : bias).ptr<float>();
            const float* s = scores.row<float>(t);
            int32_t* out = ids.row<int32_t>(t);
            // Insertion into the k best so far, best first; an equal later one stays behind.
            int64_t kept = 0;
            const auto value = [&](int32_t e) { return s[e] + b[e]; };
            const auto better = [&](float a, float c) {
                return std::isnan(c) ? !std::isnan(a) : a > c;
            };
            for (int64_t e = 0; e < num_experts; ++e) {
                const float v = value(static_cast<int32_t>(e));
                if (kept == k && !better(v, value(out[k - 1]))) continue;
                int64_t at = kept < k ? kept++ : k - 1;
                for (; at > 0 && better(v, value(out[at - 1])); --at) out[at] = out[at - 1];
                out[at] = static_cast<int32_t>(e);
            }
            std::sort(out, out + k);
        }
    });
}

}  // namespace deepinfer::cpu
