#include <cmath>
#include <numeric>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/moe/router.h"
#include "ops/twin_math.h"

namespace deepinfer {
namespace {

template <typename Acc>
void apply_scoring(Acc* s, int64_t n, ScoringFunc func) {
    switch (func) {
        case ScoringFunc::kSqrtSoftplus:
            for (int64_t e = 0; e < n; ++e)
                s[e] = std::sqrt(s[e] > Acc(20) ? s[e] : std::log1p(std::exp(s[e])));
            return;
        case ScoringFunc::kSigmoid:
            for (int64_t e = 0; e < n; ++e) s[e] = twin::sigmoid(s[e]);
            return;
        case ScoringFunc::kSoftmax: {
            const Acc top = *std::max_element(s, s + n);
            Acc sum = 0;
            for (int64_t e = 0; e < n; ++e) sum += s[e] = std::exp(s[e] - top);
            for (int64_t e = 0; e < n; ++e) s[e] /= sum;
            return;
        }
    }
}

}  // namespace

template <typename Acc>
void router_scores_ref(Stream& stream,
                       const Tensor& u,
                       const WeightMatrix& gate,
                       float temperature,
                       ScoringFunc func,
                       Tensor scores) {
    DI_CHECK(gate.dtype == DType::kBF16 || gate.dtype == DType::kF32);
    DI_CHECK(scores.dtype == twin::acc_dtype<Acc>());
    linear_ref<Acc>(stream, u, gate, scores);
    parallel_for(stream, scores.dim(0), 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            Acc* s = scores.row<Acc>(t);
            for (int64_t e = 0; e < gate.n; ++e) s[e] /= static_cast<Acc>(temperature);
            apply_scoring(s, gate.n, func);
        }
    });
}

template <typename Acc>
void router_topk_ref(Stream& stream,
                     const Tensor& scores,
                     const Tensor& bias,
                     const Tensor& bias_vl,
                     const Tensor& image_rows,
                     Tensor ids) {
    const int64_t num_experts = scores.dim(1), k = ids.dim(1);
    DI_CHECK(scores.dtype == twin::acc_dtype<Acc>() && bias.dtype == DType::kF32 &&
             ids.dtype == DType::kI32);
    DI_CHECK_EQ(bias.dim(0), num_experts);
    DI_CHECK_EQ(ids.dim(0), scores.dim(0));
    DI_CHECK_LE(k, num_experts);
    parallel_for(stream, scores.dim(0), 4, [&](int64_t begin, int64_t end) {
        std::vector<Acc> biased(static_cast<size_t>(num_experts));
        std::vector<int32_t> order(biased.size());
        for (int64_t t = begin; t < end; ++t) {
            const bool image = image_rows && image_rows.ptr<uint8_t>()[t] != 0;
            const float* b = (image ? bias_vl : bias).ptr<float>();
            for (size_t e = 0; e < biased.size(); ++e)
                biased[e] = scores.row<Acc>(t)[e] + static_cast<Acc>(b[e]);
            std::iota(order.begin(), order.end(), 0);
            const auto better = [&](int32_t a, int32_t c) {
                const Acc x = biased[static_cast<size_t>(a)], y = biased[static_cast<size_t>(c)];
                if (std::isnan(x) != std::isnan(y))
                    return std::isnan(y);  // NaN loses against everything
                if (!std::isnan(x) && x != y) return x > y;
                return a < c;
            };
            std::partial_sort(order.begin(), order.begin() + k, order.end(), better);
            std::sort(order.begin(), order.begin() + k);
            std::copy(order.begin(), order.begin() + k, ids.row<int32_t>(t));
        }
    });
}

template <typename Acc>
void router_weights_ref(Stream& stream,
                        const Tensor& scores,
                        const Tensor& ids,
                        bool normalize,
                        float scale,
                        Tensor weights) {
    const int64_t k = ids.dim(1);
    DI_CHECK(scores.dtype == twin::acc_dtype<Acc>() && weights.dtype == scores.dtype &&
             ids.dtype == DType::kI32);
    DI_CHECK_EQ(weights.dim(0), scores.dim(0));
    DI_CHECK_EQ(weights.dim(1), k);
    parallel_for(stream, scores.dim(0), 16, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            Acc* w = weights.row<Acc>(t);
            Acc sum = 0;
            for (int64_t i = 0; i < k; ++i)
                sum += w[i] = scores.row<Acc>(t)[ids.row<int32_t>(t)[i]];
            for (int64_t i = 0; i < k; ++i) {
                if (normalize) w[i] /= sum + static_cast<Acc>(1e-20);
                w[i] *= static_cast<Acc>(scale);
            }
        }
    });
}

#define DI_INSTANTIATE(Acc)                                                           \
    template void router_scores_ref<Acc>(                                             \
        Stream&, const Tensor&, const WeightMatrix&, float, ScoringFunc, Tensor);     \
    template void router_topk_ref<Acc>(                                               \
        Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor); \
    template void router_weights_ref<Acc>(                                            \
        Stream&, const Tensor&, const Tensor&, bool, float, Tensor);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
