#include "ops/rope/rope.h"
#include "ops/twin_math.h"

namespace deepinfer {

template <typename Acc>
void rope_table_ref(Stream& stream, const Tensor& positions, const Tensor& freqs, Tensor cos_sin) {
    const int64_t num_rows = positions.dim(0), pairs = freqs.dim(0);
    DI_CHECK(positions.dtype == DType::kI32 && freqs.dtype == DType::kF32);
    DI_CHECK(cos_sin.dtype == twin::acc_dtype<Acc>() && twin::rows_dense(cos_sin));
    DI_CHECK_EQ(cos_sin.dim(0), num_rows);
    DI_CHECK_EQ(cos_sin.dim(1), pairs);
    DI_CHECK_EQ(cos_sin.dim(2), 2);
    parallel_for(stream, num_rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const float position = static_cast<float>(positions.ptr<int32_t>()[t]);
            Acc* row = cos_sin.row<Acc>(t);
            for (int64_t i = 0; i < pairs; ++i) {
                const float angle =
                    position * freqs.ptr<float>()[i];  // this fp32 rounding is part of the model
                row[2 * i] = std::cos(static_cast<Acc>(angle));
                row[2 * i + 1] = std::sin(static_cast<Acc>(angle));
            }
        }
    });
}

template <typename Acc>
void rope_ref(Stream& stream, Tensor x, const Tensor& cos_sin, bool inverse) {
    const int64_t num_rows = x.dim(0), heads = x.dim(1), d = x.dim(2), pairs = cos_sin.dim(1);
    DI_CHECK(x.dtype == DType::kBF16 && cos_sin.dtype == twin::acc_dtype<Acc>());
    DI_CHECK(twin::rows_dense(x) && twin::rows_dense(cos_sin));
    DI_CHECK_EQ(cos_sin.dim(0), num_rows);
    DI_CHECK_LE(2 * pairs, d);
    parallel_for(stream, num_rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const Acc* cs = cos_sin.row<Acc>(t);
            for (int64_t h = 0; h < heads; ++h) {
                bf16* tail = x.row<bf16>(t) + h * d + (d - 2 * pairs);
                for (int64_t i = 0; i < pairs; ++i) {
                    const Acc c = cs[2 * i], s = inverse ? -cs[2 * i + 1] : cs[2 * i + 1];
                    const Acc e = static_cast<Acc>(to_float(tail[2 * i]));
                    const Acc o = static_cast<Acc>(to_float(tail[2 * i + 1]));
                    tail[2 * i] = to_bf16(e * c - o * s);
                    tail[2 * i + 1] = to_bf16(e * s + o * c);
                }
            }
        }
    });
}

template void rope_table_ref<float>(Stream&, const Tensor&, const Tensor&, Tensor);
template void rope_table_ref<double>(Stream&, const Tensor&, const Tensor&, Tensor);
template void rope_ref<float>(Stream&, Tensor, const Tensor&, bool);
template void rope_ref<double>(Stream&, Tensor, const Tensor&, bool);

}  // namespace deepinfer
