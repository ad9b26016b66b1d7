// Row-wise steps of the vision tower and the row movement of pictures on the device: one thread an
// element (a pair for the rotation), every rounding where the contract has it, nothing fused.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) vit_rope_kernel(uint16_t* x,
                                                            int64_t row_stride,
                                                            int heads,
                                                            int half,
                                                            const float2* __restrict__ cos_sin,
                                                            int64_t cos_stride,
                                                            int64_t total) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int pair = static_cast<int>(i % half), head = static_cast<int>(i / half % heads);
    const int64_t row = i / half / heads;
    const float2 cs = cos_sin[row * cos_stride + pair];
    uint16_t* p = x + row * row_stride + static_cast<int64_t>(head) * 2 * half + pair;
    const float a = bf16_value(p[0]), b = bf16_value(p[half]);
    p[0] = round_bf16_bits(__fsub_rn(__fmul_rn(a, cs.x), __fmul_rn(b, cs.y)));
    p[half] = round_bf16_bits(__fadd_rn(__fmul_rn(b, cs.x), __fmul_rn(a, cs.y)));
}

__global__ void __launch_bounds__(kThreads)
    vit_swiglu_kernel(Bf16Rows gate_up, Bf16Rows out, int n, int64_t total) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int64_t row = i / n, col = i % n;
    const float gate = bf16_value(gate_up.row(row)[col]),
                up = bf16_value(gate_up.row(row)[n + col]);
    const float silu = round_bf16(gate / (1.0f + expf(-gate)));
    out.row(row)[col] = round_bf16_bits(__fmul_rn(silu, up));
}

__global__ void __launch_bounds__(kThreads)
    add_bf16_kernel(Bf16Rows x, Bf16Rows y, int n, int64_t total) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int64_t row = i / n, col = i % n;
    uint16_t* p = x.row(row) + col;
    *p = round_bf16_bits(__fadd_rn(bf16_value(*p), bf16_value(y.row(row)[col])));
}

__global__ void __launch_bounds__(kThreads) gelu_kernel(Bf16Rows x, int n, int64_t total) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    uint16_t* p = x.row(i / n) + i % n;
    const float v = bf16_value(*p);
    // 1 + erf(a) = erfc(-a), without the cancellation where a is negative.
    *p = round_bf16_bits(v * 0.5f * erfcf(-v * 0.70710678118654752f));
}

/// One block a cell: neighbouring threads write neighbouring columns.
__global__ void __launch_bounds__(kThreads) pixel_unshuffle_kernel(
    Bf16Rows x, const int32_t* __restrict__ cells, int area, int width, Bf16Rows out) {
    begin_kernel();
    const int64_t cell = blockIdx.x;
    const int32_t* patches = cells + cell * area;
    for (int i = static_cast<int>(threadIdx.x); i < width * area; i += kThreads) {
        const int32_t patch = patches[i % area];
        out.row(cell)[i] = patch < 0 ? uint16_t{0} : x.row(patch)[i / area];
    }
}

__global__ void __launch_bounds__(kThreads) place_rows_kernel(
    Bf16Rows src, const int32_t* __restrict__ rows, int d, int streams, Bf16Rows x) {
    begin_kernel();
    uint16_t* to = x.row(rows[blockIdx.x]);
    const uint16_t* from = src.row(blockIdx.x);
    for (int i = static_cast<int>(threadIdx.x); i < d * streams; i += kThreads) to[i] = from[i % d];
}

template <typename... Params, typename... Args>
void per_element(
    Stream& stream, const char* name, void (*kernel)(Params...), int64_t total, Args... args) {
    launch(stream, name, kernel, dim3(div_up(total, kThreads)), dim3(kThreads), 0, args..., total);
}

}  // namespace

void vit_rope(Stream& stream, Tensor x, const Tensor& cos_sin) {
    DI_CHECK(x.dtype == DType::kBF16 && x.ndim == 3 && cos_sin.dtype == DType::kF32);
    DI_CHECK_EQ(cos_sin.dim(0), x.dim(0));
    DI_CHECK_EQ(2 * cos_sin.dim(1), x.dim(2));
    DI_CHECK_EQ(x.stride[1], x.dim(2));
    const int half = static_cast<int>(cos_sin.dim(1));
    per_element(stream,
                "vit_rope",
                vit_rope_kernel,
                x.dim(0) * x.dim(1) * half,
                x.ptr<uint16_t>(),
                x.stride[0],
                static_cast<int>(x.dim(1)),
                half,
                cos_sin.ptr<float2>(),
                cos_sin.stride[0] / 2);
}

void vit_swiglu(Stream& stream, const Tensor& gate_up, Tensor out) {
    DI_CHECK_EQ(gate_up.dim(1), 2 * out.dim(1));
    DI_CHECK_EQ(gate_up.dim(0), out.dim(0));
    const int n = static_cast<int>(out.dim(1));
    per_element(stream,
                "vit_swiglu",
                vit_swiglu_kernel,
                out.dim(0) * n,
                bf16_rows(gate_up),
                bf16_rows(out),
                n);
}

void add_bf16(Stream& stream, Tensor x, const Tensor& y) {
    DI_CHECK(x.dim(0) == y.dim(0) && x.dim(1) == y.dim(1));
    const int n = static_cast<int>(x.dim(1));
    per_element(stream, "add_bf16", add_bf16_kernel, x.dim(0) * n, bf16_rows(x), bf16_rows(y), n);
}

void gelu(Stream& stream, Tensor x) {
    const int n = static_cast<int>(x.dim(1));
    per_element(stream, "gelu", gelu_kernel, x.dim(0) * n, bf16_rows(x), n);
}

void pixel_unshuffle(Stream& stream, const Tensor& x, const Tensor& cells, Tensor out) {
    DI_CHECK(cells.dtype == DType::kI32 && cells.dense());
    DI_CHECK_EQ(out.dim(0), cells.dim(0));
    DI_CHECK_EQ(out.dim(1), x.dim(1) * cells.dim(1));
    launch(stream,
           "pixel_unshuffle",
           pixel_unshuffle_kernel,
           dim3(static_cast<unsigned>(cells.dim(0))),
           dim3(kThreads),
           0,
           bf16_rows(x),
           cells.ptr<int32_t>(),
           static_cast<int>(cells.dim(1)),
           static_cast<int>(x.dim(1)),
           bf16_rows(out));
}

void place_rows(Stream& stream, const Tensor& src, const Tensor& rows, Tensor x) {
    DI_CHECK(rows.dtype == DType::kI32 && x.ndim == 3 && x.stride[1] == x.dim(2));
    DI_CHECK_EQ(src.dim(0), rows.dim(0));
    DI_CHECK_EQ(src.dim(1), x.dim(2));
    launch(stream,
           "place_rows",
           place_rows_kernel,
           dim3(static_cast<unsigned>(rows.dim(0))),
           dim3(kThreads),
           0,
           bf16_rows(src),
           rows.ptr<int32_t>(),
           static_cast<int>(x.dim(2)),
           static_cast<int>(x.dim(1)),
           bf16_rows(x));
}

}  // namespace deepinfer::cuda
