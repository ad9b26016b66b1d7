#include "ops/linear/grouped_o_proj.h"
#include "ops/linear/weight_rows_ref.h"
#include "ops/twin_math.h"

namespace deepinfer {

template <typename Acc>
void grouped_o_proj_ref(
    Stream& stream, const Tensor& o, const WeightMatrix& wo_a, int groups, Tensor out) {
    const int64_t in = wo_a.k, ol = wo_a.n / groups;
    DI_CHECK_EQ(ol * groups, wo_a.n);
    DI_CHECK_EQ(o.dim(1), in * groups);
    DI_CHECK_EQ(out.dim(1), wo_a.n);
    DI_CHECK(out.dtype == DType::kBF16);
    for (int64_t g = 0; g < groups; ++g) {
        twin::multiply_weight_rows<Acc>(
            stream, o.cols(g * in, (g + 1) * in), wo_a, g * ol, out.cols(g * ol, (g + 1) * ol));
    }
}

template void grouped_o_proj_ref<float>(Stream&, const Tensor&, const WeightMatrix&, int, Tensor);
template void grouped_o_proj_ref<double>(Stream&, const Tensor&, const WeightMatrix&, int, Tensor);

}  // namespace deepinfer
