#include <vector>

#include "ops/linear/linear.h"
#include "ops/twin_math.h"
#include "ops/vision/linear_bias.h"

namespace deepinfer {

template <typename Acc>
void linear_bias_ref(
    Stream& stream, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Tensor out) {
    const int64_t num_rows = x.dim(0);
    if (num_rows == 0) return;
    DI_CHECK(bias.dtype == DType::kF32 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(bias.dim(0), w.n);
    DI_CHECK_EQ(out.dim(0), num_rows);
    std::vector<Acc> sums(static_cast<size_t>(num_rows * w.n));
    const Tensor y(sums.data(), twin::acc_dtype<Acc>(), {num_rows, w.n});
    linear_ref<Acc>(stream, x, w, y);
    parallel_for(stream, num_rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t j = 0; j < w.n; ++j)
                out.row<bf16>(t)[j] =
                    to_bf16(y.row<Acc>(t)[j] + static_cast<Acc>(bias.ptr<float>()[j]));
        }
    });
}

template void linear_bias_ref<float>(
    Stream&, const Tensor&, const WeightMatrix&, const Tensor&, Tensor);
template void linear_bias_ref<double>(
    Stream&, const Tensor&, const WeightMatrix&, const Tensor&, Tensor);

}  // namespace deepinfer
