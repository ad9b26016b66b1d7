#include <vector>

#include "ops/hyper_connection/mhc.h"
#include "ops/twin_math.h"

namespace deepinfer {

template <typename Acc>
void sinkhorn_ref(Acc* a, int hc, int iters, float hc_eps) {
    const Acc eps = static_cast<Acc>(hc_eps);
    const auto at = [&](int j, int k) -> Acc& { return a[j * hc + k]; };
    for (int j = 0; j < hc; ++j) {  // softmax of each row, + eps
        Acc top = at(j, 0), sum = 0;
        for (int k = 1; k < hc; ++k) top = std::max(top, at(j, k));
        for (int k = 0; k < hc; ++k) sum += at(j, k) = std::exp(at(j, k) - top);
        for (int k = 0; k < hc; ++k) at(j, k) = at(j, k) / sum + eps;
    }
    const auto divide_columns = [&] {
        for (int k = 0; k < hc; ++k) {
            Acc sum = 0;
            for (int j = 0; j < hc; ++j) sum += at(j, k);
            for (int j = 0; j < hc; ++j) at(j, k) /= sum + eps;
        }
    };
    const auto divide_rows = [&] {
        for (int j = 0; j < hc; ++j) {
            Acc sum = 0;
            for (int k = 0; k < hc; ++k) sum += at(j, k);
            for (int k = 0; k < hc; ++k) at(j, k) /= sum + eps;
        }
    };
    divide_columns();
    for (int i = 1; i < iters; ++i) {
        divide_rows();
        divide_columns();
    }
}

template <typename Acc>
void mhc_mixes_ref(Stream& stream,
                   const Tensor& x,
                   const Tensor& fn,
                   const Tensor& base,
                   const Tensor& scale,
                   int sinkhorn_iters,
                   float hc_eps,
                   float norm_eps,
                   Tensor pre,
                   Tensor post,
                   Tensor comb) {
    const int64_t num_rows = x.dim(0), hc = x.dim(1), n = hc * x.dim(2), outputs = (2 + hc) * hc;
    DI_CHECK(x.dtype == DType::kBF16 && fn.dtype == DType::kF32 && base.dtype == DType::kF32 &&
             scale.dtype == DType::kF32);
    DI_CHECK(pre.dtype == twin::acc_dtype<Acc>() && post.dtype == pre.dtype &&
             comb.dtype == pre.dtype);
    DI_CHECK(twin::rows_dense(x) && pre.dense() && post.dense() && comb.dense());
    DI_CHECK_LE(hc, 8);
    DI_CHECK_EQ(fn.dim(0), outputs);
    DI_CHECK_EQ(fn.dim(1), n);
    std::vector<Acc> w(static_cast<size_t>(outputs * n));
    for (int64_t j = 0; j < outputs; ++j) twin::widen(fn.row<float>(j), n, w.data() + j * n);
    parallel_for(stream, num_rows, 1, [&](int64_t begin, int64_t end) {
        std::vector<Acc> v(static_cast<size_t>(n)), m(static_cast<size_t>(outputs));
        const auto affine = [&](int64_t i, int part) {  // m[i] · scale[part] + base[i]
            return m[static_cast<size_t>(i)] * static_cast<Acc>(scale.ptr<float>()[part]) +
                   static_cast<Acc>(base.ptr<float>()[i]);
        };
        for (int64_t t = begin; t < end; ++t) {
            twin::widen(x.row<bf16>(t), n, v.data());
            const Acc mean = twin::dot(v.data(), v.data(), n) / static_cast<Acc>(n);
            const Acc r = Acc(1) / std::sqrt(mean + static_cast<Acc>(norm_eps));
            for (int64_t j = 0; j < outputs; ++j)
                m[static_cast<size_t>(j)] = twin::dot(w.data() + j * n, v.data(), n) * r;
            for (int64_t s = 0; s < hc; ++s) {
                pre.row<Acc>(t)[s] = twin::sigmoid(affine(s, 0)) + static_cast<Acc>(hc_eps);
                post.row<Acc>(t)[s] = Acc(2) * twin::sigmoid(affine(hc + s, 1));
            }
            Acc* a = comb.row<Acc>(t);
            for (int64_t i = 0; i < hc * hc; ++i) a[i] = affine(2 * hc + i, 2);
            sinkhorn_ref(a, static_cast<int>(hc), sinkhorn_iters, hc_eps);
        }
    });
}

template <typename Acc>
void mhc_collapse_ref(Stream& stream, const Tensor& x, const Tensor& pre, Tensor out) {
    const int64_t hc = x.dim(1), d = x.dim(2);
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16 &&
             pre.dtype == twin::acc_dtype<Acc>());
    DI_CHECK(twin::rows_dense(x));
    DI_CHECK_EQ(pre.dim(1), hc);
    DI_CHECK_EQ(out.dim(1), d);
    parallel_for(stream, x.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const bf16* xt = x.row<bf16>(t);
            for (int64_t i = 0; i < d; ++i) {
                Acc sum = 0;
                for (int64_t s = 0; s < hc; ++s)
                    sum += pre.row<Acc>(t)[s] * static_cast<Acc>(to_float(xt[s * d + i]));
                out.row<bf16>(t)[i] = to_bf16(sum);
            }
        }
    });
}

template <typename Acc>
void mhc_expand_ref(Stream& stream,
                    const Tensor& y,
                    const Tensor& x,
                    const Tensor& post,
                    const Tensor& comb,
                    Tensor out) {
    const int64_t hc = x.dim(1), d = x.dim(2);
    DI_CHECK(x.dtype == DType::kBF16 && y.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK(post.dtype == twin::acc_dtype<Acc>() && comb.dtype == post.dtype);
    DI_CHECK(twin::rows_dense(x) && twin::rows_dense(out) && twin::rows_dense(comb));
    DI_CHECK_EQ(y.dim(0), x.dim(0));
    DI_CHECK_EQ(y.dim(1), d);
    parallel_for(stream, x.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const bf16 *xt = x.row<bf16>(t), *yt = y.row<bf16>(t);
            for (int64_t k = 0; k < hc; ++k) {
                for (int64_t i = 0; i < d; ++i) {
                    Acc sum = post.row<Acc>(t)[k] * static_cast<Acc>(to_float(yt[i]));
                    for (int64_t j = 0; j < hc; ++j) {
                        sum += comb.row<Acc>(t)[j * hc + k] *
                               static_cast<Acc>(to_float(xt[j * d + i]));
                    }
                    out.row<bf16>(t)[k * d + i] = to_bf16(sum);
                }
            }
        }
    });
}

template <typename Acc>
void streams_mean_ref(Stream& stream, const Tensor& x, Tensor out) {
    const int64_t hc = x.dim(1), d = x.dim(2);
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16 && twin::rows_dense(x));
    DI_CHECK_EQ(out.dim(1), d);
    parallel_for(stream, x.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t i = 0; i < d; ++i) {
                Acc sum = 0;
                for (int64_t s = 0; s < hc; ++s)
                    sum += static_cast<Acc>(to_float(x.row<bf16>(t)[s * d + i]));
                out.row<bf16>(t)[i] = to_bf16(sum / static_cast<Acc>(hc));
            }
        }
    });
}

#define DI_INSTANTIATE(Acc)                                                             \
    template void sinkhorn_ref<Acc>(Acc*, int, int, float);                             \
    template void mhc_mixes_ref<Acc>(Stream&,                                           \
                                     const Tensor&,                                     \
                                     const Tensor&,                                     \
                                     const Tensor&,                                     \
                                     const Tensor&,                                     \
                                     int,                                               \
                                     float,                                             \
                                     float,                                             \
                                     Tensor,                                            \
                                     Tensor,                                            \
                                     Tensor);                                           \
    template void mhc_collapse_ref<Acc>(Stream&, const Tensor&, const Tensor&, Tensor); \
    template void mhc_expand_ref<Acc>(                                                  \
        Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor);   \
    template void streams_mean_ref<Acc>(Stream&, const Tensor&, Tensor);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
