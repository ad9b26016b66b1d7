#include <cstring>

#include "ops/twin_math.h"
#include "ops/vision/image_rows.h"

namespace deepinfer {

void pixel_unshuffle_ref(Stream& stream, const Tensor& x, const Tensor& cells, Tensor out) {
    const int64_t n = cells.dim(0), area = cells.dim(1), d = x.dim(1);
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16 && cells.dtype == DType::kI32);
    DI_CHECK_EQ(out.dim(0), n);
    DI_CHECK_EQ(out.dim(1), d * area);
    parallel_for(stream, n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            bf16* y = out.row<bf16>(t);
            for (int64_t i = 0; i < area; ++i) {
                const int64_t patch = cells.row<int32_t>(t)[i];
                DI_CHECK(patch < x.dim(0));
                const bf16* v = patch < 0 ? nullptr : x.row<bf16>(patch);
                for (int64_t c = 0; c < d; ++c) y[c * area + i] = v == nullptr ? bf16{} : v[c];
            }
        }
    });
}

void place_rows_ref(Stream& stream, const Tensor& src, const Tensor& rows, Tensor x) {
    const int64_t n = rows.dim(0), hc = x.dim(1), d = x.dim(2);
    DI_CHECK(src.dtype == DType::kBF16 && x.dtype == DType::kBF16 && rows.dtype == DType::kI32);
    DI_CHECK(twin::rows_dense(x) && twin::rows_dense(src));
    DI_CHECK_EQ(src.dim(0), n);
    DI_CHECK_EQ(src.dim(1), d);
    parallel_for(stream, n, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t t = rows.ptr<int32_t>()[i];
            DI_CHECK(t >= 0 && t < x.dim(0));
            for (int64_t s = 0; s < hc; ++s) {
                std::memcpy(x.row<bf16>(t) + s * d,
                            src.row<bf16>(i),
                            static_cast<size_t>(d) * sizeof(bf16));
            }
        }
    });
}

}  // namespace deepinfer
