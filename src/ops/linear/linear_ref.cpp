#include <vector>

#include "ops/linear/linear.h"
#include "ops/linear/weight_rows_ref.h"
#include "ops/twin_math.h"

namespace deepinfer {

float weight_value(const WeightMatrix& w, int64_t row, int64_t col) {
    const int64_t i = row * w.k + col;
    switch (w.dtype) {
        case DType::kF32:
            return static_cast<const float*>(w.weight)[i];
        case DType::kBF16:
            return to_float(static_cast<const bf16*>(w.weight)[i]);
        case DType::kFP8E4M3: {
            const uint8_t scale = w.scale[(row / 32) * ((w.k + 31) / 32) + col / 32];
            return e4m3_to_float(static_cast<const uint8_t*>(w.weight)[i]) * ue8m0_to_float(scale);
        }
        case DType::kFP4: {
            const uint8_t scale = w.scale[row * (w.k / 32) + col / 32];
            const uint8_t byte = static_cast<const uint8_t*>(w.weight)[i / 2];
            return e2m1_to_float(static_cast<uint8_t>((byte >> (4 * (i & 1))) & 15u)) *
                   ue8m0_to_float(scale);
        }
        default:
            DI_CHECK_MSG(false, dtype_name(w.dtype));
            return 0.0f;
    }
}

void weight_row(const WeightMatrix& w, int64_t row, float* out) {
    for (int64_t i = 0; i < w.k; ++i) out[i] = weight_value(w, row, i);
}

namespace twin {

template <typename Acc>
void multiply_weight_rows(
    Stream& stream, const Tensor& x, const WeightMatrix& w, int64_t first_row, Tensor out) {
    const int64_t num_rows = x.dim(0), k = w.k, n = out.dim(1);
    DI_CHECK(x.dtype == DType::kBF16);
    DI_CHECK(out.dtype == DType::kBF16 || out.dtype == acc_dtype<Acc>());
    DI_CHECK_EQ(x.dim(1), k);
    DI_CHECK_EQ(out.dim(0), num_rows);
    DI_CHECK_LE(first_row + n, w.n);
    DI_CHECK(k % 32 == 0 || w.dtype == DType::kBF16 || w.dtype == DType::kF32);
    // Activations are widened a tile at a time, weights once per tile: small memory, and the
    // widening of either side costs little beside the products.
    constexpr int64_t kTile = 64;
    parallel_for(stream, n, 1, [&](int64_t begin, int64_t end) {
        std::vector<Acc> xs(static_cast<size_t>(std::min(kTile, num_rows) * k)),
            ws(static_cast<size_t>(k));
        std::vector<float> raw(static_cast<size_t>(k));
        for (int64_t t0 = 0; t0 < num_rows; t0 += kTile) {
            const int64_t t1 = std::min(t0 + kTile, num_rows);
            for (int64_t t = t0; t < t1; ++t) widen(x.row<bf16>(t), k, xs.data() + (t - t0) * k);
            for (int64_t j = begin; j < end; ++j) {
                weight_row(w, first_row + j, raw.data());
                widen(raw.data(), k, ws.data());
                for (int64_t t = t0; t < t1; ++t) {
                    const Acc y = dot(xs.data() + (t - t0) * k, ws.data(), k);
                    if (out.dtype == DType::kBF16) {
                        out.row<bf16>(t)[j] = to_bf16(y);
                    } else {
                        out.row<Acc>(t)[j] = y;
                    }
                }
            }
        }
    });
}

template void multiply_weight_rows<float>(
    Stream&, const Tensor&, const WeightMatrix&, int64_t, Tensor);
template void multiply_weight_rows<double>(
    Stream&, const Tensor&, const WeightMatrix&, int64_t, Tensor);

}  // namespace twin

template <typename Acc>
void linear_ref(Stream& stream, const Tensor& x, const WeightMatrix& w, Tensor out) {
    DI_CHECK_EQ(out.dim(1), w.n);
    twin::multiply_weight_rows<Acc>(stream, x, w, 0, out);
}

template void linear_ref<float>(Stream&, const Tensor&, const WeightMatrix&, Tensor);
template void linear_ref<double>(Stream&, const Tensor&, const WeightMatrix&, Tensor);

}  // namespace deepinfer
