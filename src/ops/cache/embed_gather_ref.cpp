#include <cstring>
#include <vector>

#include "ops/cache/embed_gather.h"
#include "ops/linear/linear.h"
#include "ops/twin_math.h"

namespace deepinfer {

void embed_streams_ref(Stream& stream, const WeightMatrix& embed, const Tensor& ids, Tensor out) {
    const int64_t hc = out.dim(1), d = out.dim(2);
    DI_CHECK(embed.dtype == DType::kBF16 || embed.dtype == DType::kF32);
    DI_CHECK(ids.dtype == DType::kI32 && out.dtype == DType::kBF16 && twin::rows_dense(out));
    DI_CHECK_EQ(out.dim(0), ids.dim(0));
    DI_CHECK_EQ(d, embed.k);
    parallel_for(stream, ids.dim(0), 4, [&](int64_t begin, int64_t end) {
        std::vector<float> row(static_cast<size_t>(d));
        for (int64_t t = begin; t < end; ++t) {
            const int64_t id = ids.ptr<int32_t>()[t];
            DI_CHECK(id >= 0 && id < embed.n);
            weight_row(embed, id, row.data());
            for (int64_t s = 0; s < hc; ++s) {
                for (int64_t i = 0; i < d; ++i)
                    out.row<bf16>(t)[s * d + i] = to_bf16(row[static_cast<size_t>(i)]);
            }
        }
    });
}

void gather_rows_ref(Stream& stream, const Tensor& src, const Tensor& rows, Tensor out) {
    DI_CHECK(rows.dtype == DType::kI32 && out.dtype == src.dtype && twin::rows_dense(src) &&
             out.dense());
    DI_CHECK_EQ(out.dim(0), rows.dim(0));
    if (rows.dim(0) == 0) return;
    const int64_t row_bytes = out.rows(0, 1).bytes();
    DI_CHECK_EQ(src.rows(0, 1).bytes(), row_bytes);
    parallel_for(stream, rows.dim(0), 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t r = rows.ptr<int32_t>()[i];
            DI_CHECK(r >= 0 && r < src.dim(0));
            std::memcpy(
                out.rows(i, i + 1).data, src.rows(r, r + 1).data, static_cast<size_t>(row_bytes));
        }
    });
}

}  // namespace deepinfer
