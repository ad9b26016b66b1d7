#include <vector>

#include "ops/norm/rms_norm.h"
#include "ops/twin_math.h"

namespace deepinfer {

template <typename Acc>
void rms_norm_ref(Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out) {
    const int64_t num_rows = x.dim(0), n = x.dim(1);
    DI_CHECK(x.dtype == DType::kBF16 && weight.dtype == DType::kF32 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(weight.dim(0), n);
    DI_CHECK_EQ(out.dim(0), num_rows);
    DI_CHECK_EQ(out.dim(1), n);
    parallel_for(stream, num_rows, 1, [&](int64_t begin, int64_t end) {
        std::vector<Acc> v(static_cast<size_t>(n));
        const float* w = weight.ptr<float>();
        for (int64_t t = begin; t < end; ++t) {
            twin::widen(x.row<bf16>(t), n, v.data());
            const Acc mean = twin::dot(v.data(), v.data(), n) / static_cast<Acc>(n);
            const Acc r = Acc(1) / std::sqrt(mean + static_cast<Acc>(eps));
            bf16* y = out.row<bf16>(t);
            for (int64_t i = 0; i < n; ++i)
                y[i] = to_bf16(v[static_cast<size_t>(i)] * r * static_cast<Acc>(w[i]));
        }
    });
}

template void rms_norm_ref<float>(Stream&, const Tensor&, const Tensor&, float, Tensor);
template void rms_norm_ref<double>(Stream&, const Tensor&, const Tensor&, float, Tensor);

}  // namespace deepinfer
