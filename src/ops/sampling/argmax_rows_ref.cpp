#include <limits>

#include "ops/sampling/argmax_rows.h"
#include "ops/twin_math.h"

namespace deepinfer {

template <typename Acc>
void argmax_rows_ref(Stream& stream, const Tensor& x, Tensor ids) {
    const int64_t n = x.dim(1);
    DI_CHECK(x.dtype == twin::acc_dtype<Acc>() && ids.dtype == DType::kI32);
    DI_CHECK_EQ(ids.dim(0), x.dim(0));
    DI_CHECK_GE(n, 1);
    parallel_for(stream, x.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const Acc* row = x.row<Acc>(t);
            Acc best = -std::numeric_limits<Acc>::infinity();
            int64_t at = 0;
            for (int64_t i = 0; i < n; ++i) {
                if (row[i] > best) {
                    best = row[i];
                    at = i;
                }
            }
            ids.ptr<int32_t>()[t] = static_cast<int32_t>(at);
        }
    });
}

template void argmax_rows_ref<float>(Stream&, const Tensor&, Tensor);
template void argmax_rows_ref<double>(Stream&, const Tensor&, Tensor);

}  // namespace deepinfer
