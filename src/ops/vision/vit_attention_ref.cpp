#include <cmath>
#include <vector>

#include "ops/twin_math.h"
#include "ops/vision/vit_attention.h"

namespace deepinfer {

template <typename Acc>
void vit_attention_ref(
    Stream& stream, const Tensor& qkv, const Tensor& cu_rows, double scale, Tensor out) {
    const int64_t num_rows = qkv.dim(0), heads = qkv.dim(2), dh = qkv.dim(3), d = heads * dh;
    DI_CHECK(qkv.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK(cu_rows.dtype == DType::kI32 && twin::rows_dense(qkv));
    DI_CHECK_EQ(qkv.dim(1), 3);
    DI_CHECK_EQ(out.dim(0), num_rows);
    DI_CHECK_EQ(out.dim(1), d);
    const int32_t* cu = cu_rows.ptr<int32_t>();
    const int64_t pictures = cu_rows.dim(0) - 1;
    DI_CHECK(cu[0] == 0 && cu[pictures] == num_rows);
    for (int64_t b = 0; b < pictures; ++b) {
        const int64_t first = cu[b], n = cu[b + 1] - first;
        DI_CHECK_GE(n, 0);
        for (int64_t h = 0; h < heads; ++h) {
            std::vector<Acc> k(static_cast<size_t>(n * dh)), v(k.size());
            for (int64_t j = 0; j < n; ++j) {
                const bf16* row = qkv.row<bf16>(first + j) + h * dh;
                twin::widen(row + d, dh, k.data() + j * dh);
                twin::widen(row + 2 * d, dh, v.data() + j * dh);
            }
            parallel_for(stream, n, 1, [&](int64_t begin, int64_t end) {
                std::vector<Acc> q(static_cast<size_t>(dh)), p(static_cast<size_t>(n)),
                    y(static_cast<size_t>(dh));
                for (int64_t t = begin; t < end; ++t) {
                    twin::widen(qkv.row<bf16>(first + t) + h * dh, dh, q.data());
                    Acc top = -INFINITY;
                    for (int64_t j = 0; j < n; ++j) {
                        const Acc s =
                            twin::dot(q.data(), k.data() + j * dh, dh) * static_cast<Acc>(scale);
                        p[static_cast<size_t>(j)] = s;
                        top = std::max(top, s);
                    }
                    Acc sum = 0;
                    std::fill(y.begin(), y.end(), Acc(0));
                    for (int64_t j = 0; j < n; ++j) {
                        const Acc e = std::exp(p[static_cast<size_t>(j)] - top);
                        sum += e;
                        for (int64_t i = 0; i < dh; ++i)
                            y[static_cast<size_t>(i)] += e * v[static_cast<size_t>(j * dh + i)];
                    }
                    bf16* o = out.row<bf16>(first + t) + h * dh;
                    for (int64_t i = 0; i < dh; ++i)
                        o[i] = to_bf16(y[static_cast<size_t>(i)] / sum);
                }
            });
        }
    }
}

template void vit_attention_ref<float>(Stream&, const Tensor&, const Tensor&, double, Tensor);
template void vit_attention_ref<double>(Stream&, const Tensor&, const Tensor&, double, Tensor);

}  // namespace deepinfer
