// Fake quantization of activations on the device: four lanes a block of 32, eight values a lane.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

struct Q8 {
    static constexpr float kFloor = 1e-4f, kInverseTop = 1.0f / 448.0f;
    static __device__ float round(float scaled) { return e4m3_value(e4m3_code(scaled)); }
};
struct Q4m {
    static constexpr float kFloor = 6.0f * 0x1p-126f, kInverseTop = 1.0f / 6.0f;
    static __device__ float round(float scaled) { return e2m1_value(e2m1_code(scaled)); }
};

template <typename Q>
__global__ void __launch_bounds__(kThreads)
    quant_kernel(Bf16Rows x, int64_t num_rows, int groups, Bf16Rows out) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t row = i / groups;
    const int col = static_cast<int>(i % groups) * 8;
    const bool live = row < num_rows;  // idle lanes still take part in the shuffles
    Bf16x8 v{};
    if (live) v = load8(x.row(row) + col, x.aligned);
    float amax = Q::kFloor;
#pragma unroll
    for (int j = 0; j < 8; ++j) amax = fmaxf(amax, fabsf(bf16_value(v.v[j])));
    amax = group_max<4>(amax);
    const uint32_t e = ue8m0_scale_byte(amax, Q::kInverseTop);
    const float inverse = ue8m0_inverse(e), scale = ue8m0_value(e);
#pragma unroll
    for (int j = 0; j < 8; ++j)
        v.v[j] = round_bf16_bits(Q::round(bf16_value(v.v[j]) * inverse) * scale);
    if (live) store8(out.row(row) + col, v, out.aligned);
}

template <typename Q>
void quant(Stream& stream, const char* name, const Tensor& x, Tensor out) {
    const int64_t rows = x.dim(0), k = x.dim(1);
    DI_CHECK_EQ(k % 32, 0);
    const int groups = static_cast<int>(k / 8);
    launch(stream,
           name,
           quant_kernel<Q>,
           dim3(div_up(rows * groups, kThreads)),
           dim3(kThreads),
           0,
           bf16_rows(x),
           rows,
           groups,
           bf16_rows(out));
}

__global__ void __launch_bounds__(kThreads)
    scale_kernel(Bf16Rows x, int64_t total, int64_t n, float factor, Bf16Rows out) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    out.row(i / n)[i % n] = round_bf16_bits(bf16_value(x.row(i / n)[i % n]) * factor);
}

}  // namespace

void quant_q8(Stream& stream, const Tensor& x, Tensor out) {
    quant<Q8>(stream, "quant_q8", x, out);
}
void quant_q4m(Stream& stream, const Tensor& x, Tensor out) {
    quant<Q4m>(stream, "quant_q4m", x, out);
}

void scale_bf16(Stream& stream, const Tensor& x, float factor, Tensor out) {
    const int64_t n = row_elements(x);
    launch(stream,
           "scale_bf16",
           scale_kernel,
           dim3(div_up(x.numel(), kThreads)),
           dim3(kThreads),
           0,
           bf16_rows(x),
           x.numel(),
           n,
           factor,
           bf16_rows(out));
}

}  // namespace deepinfer::cuda
