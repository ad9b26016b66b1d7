// Row-wise steps of the vision tower.
#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/kernels/vit_inl.h"

namespace deepinfer::cpu {

extern const VitKernels kVit_baseline;
const VitKernels kVit_baseline = vit_kernels();

namespace {

/// Rows per thread so that a part is worth handing out.
int64_t row_grain(int64_t width) {
    return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width));
}

}  // namespace

void vit_rope_cpu(const Kernels& k, Stream& stream, Tensor x, const Tensor& cos_sin) {
    const int64_t heads = x.dim(1), d = x.dim(2);
    DI_CHECK(x.dtype == DType::kBF16 && cos_sin.dtype == DType::kF32);
    DI_CHECK_EQ(cos_sin.dim(0), x.dim(0));
    DI_CHECK_EQ(2 * cos_sin.dim(1), d);
    parallel_for(stream, x.dim(0), row_grain(heads * d), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
            k.vit.rope(&x.row<bf16>(t)->bits, cos_sin.row<float>(t), heads, d);
    });
}

void vit_swiglu_cpu(const Kernels& k, Stream& stream, const Tensor& gate_up, Tensor out) {
    const int64_t n = out.dim(1);
    if (n % 16 != 0) return vit_swiglu_ref<float>(stream, gate_up, out);
    DI_CHECK(gate_up.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(gate_up.dim(1), 2 * n);
    DI_CHECK_EQ(gate_up.dim(0), out.dim(0));
    parallel_for(stream, out.dim(0), row_grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const uint16_t* g = &gate_up.row<bf16>(t)->bits;
            k.vit.swiglu(g, g + n, n, &out.row<bf16>(t)->bits);
        }
    });
}

void add_bf16_cpu(const Kernels& k, Stream& stream, Tensor x, const Tensor& y) {
    const int64_t n = x.dim(1);
    if (n % 16 != 0) return add_bf16_ref<float>(stream, x, y);
    DI_CHECK(x.dtype == DType::kBF16 && y.dtype == DType::kBF16);
    DI_CHECK_EQ(y.dim(0), x.dim(0));
    DI_CHECK_EQ(y.dim(1), n);
    parallel_for(stream, x.dim(0), row_grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
            k.vit.add(&x.row<bf16>(t)->bits, &y.row<bf16>(t)->bits, n);
    });
}

}  // namespace deepinfer::cpu
