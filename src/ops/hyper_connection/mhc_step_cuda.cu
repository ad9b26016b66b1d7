// One pass over the residual streams between two sites: expand, collapse, RMS norm, q8.
//
// A block owns a row; a thread keeps eight neighbouring columns of all streams in registers, so
// that the new streams are written once and never read back. The bits are those of the four ops
// (mhc_cuda.cu, rms_norm_cuda.cu, cast_round_cuda.cu), which also take the shapes that do not fit
// here.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/row_squares.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHc = 4;
constexpr int kThreads = 640;
constexpr int kMostColumns = kThreads * 8;

struct StepParams {
    Bf16Rows y;
    const uint16_t* x;
    const float* post;
    const float* comb;
    const float* pre;
    const float* weight;
    float eps;
    int d;
    uint16_t* out;
    Bf16Rows u, uq;
};

__global__ void __launch_bounds__(kThreads) mhc_step_kernel(const __grid_constant__ StepParams p) {
    __shared__ float runs[kMaxSquareRuns];
    const int64_t row = blockIdx.x;
    const int i = static_cast<int>(threadIdx.x) * 8;
    const bool live = i < p.d;
    float weight[8] = {};
    if (live) {  // no kernel writes it: it may travel while the one before finishes
        const auto* w = reinterpret_cast<const float4*>(p.weight + i);
        *reinterpret_cast<float4*>(weight) = w[0];
        *reinterpret_cast<float4*>(weight + 4) = w[1];
    }
    begin_kernel();
    Bf16x8 xs[kHc]{}, y{};
    if (live) {
#pragma unroll
        for (int j = 0; j < kHc; ++j) xs[j] = load8(p.x + (row * kHc + j) * p.d + i, true);
        y = load8(p.y.row(row) + i, true);
    }
    float collapsed[8] = {};
#pragma unroll
    for (int k = 0; k < kHc; ++k) {
        const float post = p.post[row * kHc + k], pre = p.pre[row * kHc + k];
        float sum[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) sum[c] = post * bf16_value(y.v[c]);
#pragma unroll
        for (int j = 0; j < kHc; ++j) {
            const float w = p.comb[(row * kHc + j) * kHc + k];
#pragma unroll
            for (int c = 0; c < 8; ++c) sum[c] += w * bf16_value(xs[j].v[c]);
        }
        Bf16x8 r;
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            r.v[c] = round_bf16_bits(sum[c]);
            collapsed[c] += pre * bf16_value(r.v[c]);
        }
        if (live) store8(p.out + (row * kHc + k) * p.d + i, r, true);
    }
    Bf16x8 u{};
    if (live) {
#pragma unroll
        for (int c = 0; c < 8; ++c) u.v[c] = round_bf16_bits(collapsed[c]);
    }
    store_run(group_squares(u), static_cast<int>(threadIdx.x) / 32, runs);
    __syncthreads();
    const float inverse = inverse_rms(runs, square_runs(p.d), p.d, p.eps);
#pragma unroll
    for (int c = 0; c < 8; ++c) u.v[c] = round_bf16_bits(bf16_value(u.v[c]) * inverse * weight[c]);
    if (live) store8(p.u.row(row) + i, u, p.u.aligned);
    if (p.uq.data == nullptr) return;
    u = q8_group(u);
    if (live) store8(p.uq.row(row) + i, u, p.uq.aligned);
}

bool aligned(const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}

}  // namespace

void mhc_step(Stream& stream,
              const Tensor& y,
              const Tensor& x,
              const Tensor& post,
              const Tensor& comb,
              const Tensor& pre,
              const Tensor& weight,
              float eps,
              Tensor out,
              Tensor u,
              Tensor uq) {
    const int64_t rows = x.dim(0), d = x.dim(2);
    DI_CHECK(x.dense() && out.dense() && post.dtype == DType::kF32);
    DI_CHECK_EQ(weight.numel(), d);
    if (x.dim(1) != kHc || d % 32 != 0 || d > kMostColumns || !aligned(x) || !aligned(out) ||
        !aligned(weight) || !bf16_rows(y).aligned) {
        mhc_expand(stream, y, x, post, comb, out);
        mhc_collapse(stream, out, pre, u);
        if (uq) return rms_norm_q8(stream, u, weight, eps, u, uq);
        return rms_norm(stream, u, weight, eps, u);
    }
    StepParams p{};
    p.y = bf16_rows(y);
    p.x = x.ptr<uint16_t>();
    p.post = post.ptr<float>();
    p.comb = comb.ptr<float>();
    p.pre = pre.ptr<float>();
    p.weight = weight.ptr<float>();
    p.eps = eps;
    p.d = static_cast<int>(d);
    p.out = out.ptr<uint16_t>();
    p.u = bf16_rows(u);
    if (uq) p.uq = bf16_rows(uq);
    launch(stream,
           "mhc_step",
           mhc_step_kernel,
           dim3(static_cast<unsigned>(rows)),
           dim3(div_up(d, 256) * 32),
           0,
           p);
}

}  // namespace deepinfer::cuda
