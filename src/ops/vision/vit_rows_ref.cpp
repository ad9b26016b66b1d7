#include <cmath>

#include "ops/twin_math.h"
#include "ops/vision/vit_rows.h"

namespace deepinfer {

template <typename Acc>
void vit_rope_ref(Stream& stream, Tensor x, const Tensor& cos_sin) {
    const int64_t num_rows = x.dim(0), heads = x.dim(1), d = x.dim(2), half = d / 2;
    DI_CHECK(x.dtype == DType::kBF16 && cos_sin.dtype == twin::acc_dtype<Acc>());
    DI_CHECK(twin::rows_dense(x) && twin::rows_dense(cos_sin));
    DI_CHECK_EQ(cos_sin.dim(0), num_rows);
    DI_CHECK_EQ(2 * cos_sin.dim(1), d);
    parallel_for(stream, num_rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const Acc* cs = cos_sin.row<Acc>(t);
            for (int64_t h = 0; h < heads; ++h) {
                bf16* v = x.row<bf16>(t) + h * d;
                for (int64_t i = 0; i < half; ++i) {
                    const Acc c = cs[2 * i], s = cs[2 * i + 1];
                    const Acc a = static_cast<Acc>(to_float(v[i]));
                    const Acc b = static_cast<Acc>(to_float(v[i + half]));
                    v[i] = to_bf16(a * c - b * s);
                    v[i + half] = to_bf16(b * c + a * s);
                }
            }
        }
    });
}

template <typename Acc>
void vit_swiglu_ref(Stream& stream, const Tensor& gate_up, Tensor out) {
    const int64_t num_rows = gate_up.dim(0), n = out.dim(1);
    DI_CHECK(gate_up.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(gate_up.dim(1), 2 * n);
    DI_CHECK_EQ(out.dim(0), num_rows);
    parallel_for(stream, num_rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const bf16* g = gate_up.row<bf16>(t);
            for (int64_t i = 0; i < n; ++i) {
                const Acc a = static_cast<Acc>(to_float(g[i]));
                const bf16 silu = to_bf16(a * twin::sigmoid(a));
                out.row<bf16>(t)[i] = to_bf16(static_cast<Acc>(to_float(silu)) *
                                              static_cast<Acc>(to_float(g[n + i])));
            }
        }
    });
}

template <typename Acc>
void add_bf16_ref(Stream& stream, Tensor x, const Tensor& y) {
    const int64_t num_rows = x.dim(0), n = x.dim(1);
    DI_CHECK(x.dtype == DType::kBF16 && y.dtype == DType::kBF16);
    DI_CHECK_EQ(y.dim(0), num_rows);
    DI_CHECK_EQ(y.dim(1), n);
    parallel_for(stream, num_rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t i = 0; i < n; ++i)
                x.row<bf16>(t)[i] = to_bf16(static_cast<Acc>(to_float(x.row<bf16>(t)[i])) +
                                            static_cast<Acc>(to_float(y.row<bf16>(t)[i])));
        }
    });
}

template <typename Acc>
void gelu_ref(Stream& stream, Tensor x) {
    const int64_t num_rows = x.dim(0), n = x.dim(1);
    DI_CHECK(x.dtype == DType::kBF16);
    const Acc root_half = std::sqrt(Acc(0.5));
    parallel_for(stream, num_rows, 2, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t i = 0; i < n; ++i) {
                const Acc v = static_cast<Acc>(to_float(x.row<bf16>(t)[i]));
                // 1 + erf(a) = erfc(-a), without the cancellation where a is negative.
                x.row<bf16>(t)[i] = to_bf16(v * Acc(0.5) * std::erfc(-v * root_half));
            }
        }
    });
}

template void vit_rope_ref<float>(Stream&, Tensor, const Tensor&);
template void vit_rope_ref<double>(Stream&, Tensor, const Tensor&);
template void vit_swiglu_ref<float>(Stream&, const Tensor&, Tensor);
template void vit_swiglu_ref<double>(Stream&, const Tensor&, Tensor);
template void add_bf16_ref<float>(Stream&, Tensor, const Tensor&);
template void add_bf16_ref<double>(Stream&, Tensor, const Tensor&);
template void gelu_ref<float>(Stream&, Tensor);
template void gelu_ref<double>(Stream&, Tensor);

}  // namespace deepinfer
