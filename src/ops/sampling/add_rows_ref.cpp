#include "ops/sampling/add_rows.h"
#include "ops/twin_math.h"

namespace deepinfer {

template <typename Acc>
void add_rows_ref(Stream& stream, const Tensor& x, Tensor out) {
    const int64_t n = x.dim(1);
    DI_CHECK(x.dtype == twin::acc_dtype<Acc>() && out.dtype == x.dtype);
    DI_CHECK_EQ(out.dim(0), x.dim(0));
    DI_CHECK_EQ(out.dim(1), n);
    parallel_for(stream, x.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const Acc* src = x.row<Acc>(t);
            Acc* dst = out.row<Acc>(t);
            for (int64_t i = 0; i < n; ++i) dst[i] += src[i];
        }
    });
}

template void add_rows_ref<float>(Stream&, const Tensor&, Tensor);
template void add_rows_ref<double>(Stream&, const Tensor&, Tensor);

}  // namespace deepinfer
