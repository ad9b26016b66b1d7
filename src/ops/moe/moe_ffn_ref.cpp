#include <cstring>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/moe/moe_ffn.h"
#include "ops/quant/cast_round.h"
#include "ops/twin_math.h"

namespace deepinfer {

template <typename Acc>
void swiglu_ref(Stream& stream,
                const Tensor& gate,
                const Tensor& up,
                const Tensor& weight,
                float limit,
                Tensor out) {
    const int64_t n = gate.dim(1);
    DI_CHECK(gate.dtype == DType::kBF16 && up.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK(!weight || weight.dtype == twin::acc_dtype<Acc>());
    DI_CHECK_EQ(up.dim(1), n);
    DI_CHECK_EQ(out.dim(1), n);
    parallel_for(stream, gate.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const Acc w = weight ? *weight.row<Acc>(t) : Acc(1);
            for (int64_t j = 0; j < n; ++j) {
                Acc g = static_cast<Acc>(to_float(gate.row<bf16>(t)[j])),
                    u = static_cast<Acc>(to_float(up.row<bf16>(t)[j]));
                if (limit > 0.0f) {  // comparisons that are false for NaN, so that it stays visible
                    const Acc top = static_cast<Acc>(limit);
                    if (g > top) g = top;
                    if (u > top) u = top;
                    if (u < -top) u = -top;
                }
                out.row<bf16>(t)[j] = to_bf16(g / (Acc(1) + std::exp(-g)) * u * w);
            }
        }
    });
}

namespace {

/// A tensor with its memory.
struct Owned {
    std::vector<uint8_t> memory;
    Tensor view;
    Owned(DType dtype, std::initializer_list<int64_t> dims) {
        view = Tensor(nullptr, dtype, dims);
        memory.resize(static_cast<size_t>(view.bytes()) + 1);
        view.data = memory.data();
    }
};

/// One expert on gathered rows x [m, D] (already quantized): bf16 [m, D].
template <typename Acc>
Owned run_expert(
    Stream& stream, const Tensor& x, const ExpertWeights& e, const Tensor& weights, float limit) {
    const int64_t m = x.dim(0);
    Owned gate(DType::kBF16, {m, e.w1.n}), up(DType::kBF16, {m, e.w3.n}),
        y(DType::kBF16, {m, e.w2.n});
    linear_ref<Acc>(stream, x, e.w1, gate.view);
    linear_ref<Acc>(stream, x, e.w3, up.view);
    swiglu_ref<Acc>(stream, gate.view, up.view, weights, limit, gate.view);
    quant_q8_ref(stream, gate.view, gate.view);
    linear_ref<Acc>(stream, gate.view, e.w2, y.view);
    return y;
}

}  // namespace

template <typename Acc>
void moe_ffn_ref(Stream& stream,
                 const Tensor& u,
                 const Tensor& ids,
                 const Tensor& weights,
                 std::span<const ExpertWeights> experts,
                 const ExpertWeights& shared,
                 float limit,
                 Tensor out) {
    const int64_t num_rows = u.dim(0), d = u.dim(1), k = ids.dim(1);
    DI_CHECK(u.dtype == DType::kBF16 && ids.dtype == DType::kI32 &&
             weights.dtype == twin::acc_dtype<Acc>());
    DI_CHECK(out.dtype == DType::kBF16);
    DI_CHECK_EQ(ids.dim(0), num_rows);
    DI_CHECK_EQ(out.dim(0), num_rows);
    DI_CHECK_EQ(out.dim(1), d);
    if (num_rows == 0) return;
    Owned quantized(DType::kBF16, {num_rows, d});
    quant_q8_ref(stream, u, quantized.view);

    struct Pick {
        int64_t row, i;  // ids[row, i] is the expert
    };
    std::vector<std::vector<Pick>> picks(experts.size());
    for (int64_t t = 0; t < num_rows; ++t) {
        for (int64_t i = 0; i < k; ++i) {
            const int64_t e = ids.row<int32_t>(t)[i];
            DI_CHECK(e >= 0 && e < static_cast<int64_t>(experts.size()));
            picks[static_cast<size_t>(e)].push_back({t, i});
        }
    }
    // Experts run in ascending id, so each row's fp32 sum grows in ascending id.
    std::vector<float> sum(static_cast<size_t>(num_rows * d), 0.0f);
    const auto add = [&](int64_t row, const bf16* y) {
        for (int64_t j = 0; j < d; ++j) sum[static_cast<size_t>(row * d + j)] += to_float(y[j]);
    };
    for (size_t e = 0; e < experts.size(); ++e) {
        const int64_t m = static_cast<int64_t>(picks[e].size());
        if (m == 0) continue;
        Owned x(DType::kBF16, {m, d}), w(twin::acc_dtype<Acc>(), {m});
        for (int64_t r = 0; r < m; ++r) {
            const Pick p = picks[e][static_cast<size_t>(r)];
            std::memcpy(x.view.row<bf16>(r),
                        quantized.view.row<bf16>(p.row),
                        static_cast<size_t>(d) * sizeof(bf16));
            w.view.ptr<Acc>()[r] = weights.row<Acc>(p.row)[p.i];
        }
        const Owned y = run_expert<Acc>(stream, x.view, experts[e], w.view, limit);
        for (int64_t r = 0; r < m; ++r)
            add(picks[e][static_cast<size_t>(r)].row, y.view.row<bf16>(r));
    }
    const Owned y = run_expert<Acc>(stream, quantized.view, shared, Tensor(), limit);
    for (int64_t t = 0; t < num_rows; ++t) {
        add(t, y.view.row<bf16>(t));
        for (int64_t j = 0; j < d; ++j)
            out.row<bf16>(t)[j] = to_bf16(sum[static_cast<size_t>(t * d + j)]);
    }
}

#define DI_INSTANTIATE(Acc)                                                   \
    template void swiglu_ref<Acc>(                                            \
        Stream&, const Tensor&, const Tensor&, const Tensor&, float, Tensor); \
    template void moe_ffn_ref<Acc>(Stream&,                                   \
                                   const Tensor&,                             \
                                   const Tensor&,                             \
                                   const Tensor&,                             \
                                   std::span<const ExpertWeights>,            \
                                   const ExpertWeights&,                      \
                                   float,                                     \
                                   Tensor);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
