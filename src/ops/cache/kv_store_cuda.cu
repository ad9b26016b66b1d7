// Cache writes on the device. One thread quantizes one block of a row; packed rows may start at any
// byte.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"
#include "tensor/quant_block.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

template <int N>
__device__ float load_block(const uint16_t* src, bool aligned, float floor, float (&x)[N]) {
    float amax = floor;
#pragma unroll
    for (int i = 0; i < N; i += 8) {
        const Bf16x8 v = load8(src + i, aligned);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            x[i + j] = bf16_value(v.v[j]);
            amax = fmaxf(amax, fabsf(x[i + j]));
        }
    }
    return amax;
}

__global__ void __launch_bounds__(kThreads)
    window_pack_kernel(Bf16Rows kv, int dh, int64_t total, uint8_t* rows, int64_t stride) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int blocks = dh / 32, b = static_cast<int>(i % blocks);
    float x[32];
    const float amax = load_block(kv.row(i / blocks) + b * 32, kv.aligned, 1e-4f, x);
    const uint32_t e = ue8m0_scale_byte(amax, 1.0f / 448.0f);
    const float inverse = ue8m0_inverse(e);
    uint8_t* dst = rows + i / blocks * stride;
#pragma unroll
    for (int j = 0; j < 32; ++j) dst[b * 32 + j] = e4m3_code(x[j] * inverse);
    dst[dh + b] = static_cast<uint8_t>(e);
}

/// One block a row: copies it if it is among its sequence's last ring_len rows.
__global__ void __launch_bounds__(kThreads) window_store_kernel(const uint8_t* __restrict__ rows,
                                                                int64_t row_stride,
                                                                int row_bytes,
                                                                BatchPointers b,
                                                                uint8_t* ring,
                                                                int64_t ring_len) {
    begin_kernel();
    const int t = static_cast<int>(blockIdx.x);
    const int seq = b.row_seq[t];
    const int pos = b.positions[t];
    const int last = b.seq_start[seq] + b.seq_rows[seq + 1] - b.seq_rows[seq] - 1;
    if (last - pos >= ring_len) return;
    uint8_t* dst =
        ring + (static_cast<int64_t>(b.seq_slot[seq]) * ring_len + pos % ring_len) * row_bytes;
    for (int i = static_cast<int>(threadIdx.x); i < row_bytes; i += kThreads)
        dst[i] = rows[t * row_stride + i];
}

__global__ void __launch_bounds__(kThreads) kv_entry_kernel(Bf16Rows c,
                                                            int dh,
                                                            int64_t total,
                                                            const int64_t* __restrict__ slots,
                                                            uint8_t* pool,
                                                            int64_t stride) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int blocks = dh / 16, b = static_cast<int>(i % blocks);
    const int64_t slot = slots[i / blocks];
    if (slot < 0) return;
    float x[16];
    const float amax = load_block(c.row(i / blocks) + b * 16, c.aligned, 6.0f * 0x1p-9f, x);
    const uint8_t s = e4m3_code(__fdiv_rn(amax, 6.0f));
    const float scale = e4m3_value(s);
    uint8_t* dst = pool + slot * stride;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
        dst[b * 8 + j / 2] = static_cast<uint8_t>(e2m1_code(__fdiv_rn(x[j], scale)) |
                                                  (e2m1_code(__fdiv_rn(x[j + 1], scale)) << 4));
    }
    dst[dh / 2 + b] = s;
}

__global__ void __launch_bounds__(kThreads) index_key_kernel(Bf16Rows k,
                                                             int di,
                                                             int64_t total,
                                                             const int64_t* __restrict__ slots,
                                                             uint8_t* pool,
                                                             int64_t stride) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int blocks = di / 32, b = static_cast<int>(i % blocks);
    const int64_t slot = slots[i / blocks];
    if (slot < 0) return;
    float x[32];
    const float amax = load_block(k.row(i / blocks) + b * 32, k.aligned, 6.0f * 0x1p-126f, x);
    const uint32_t e = ue8m0_scale_byte(amax, 1.0f / 6.0f);
    const float inverse = ue8m0_inverse(e);
    uint8_t* dst = pool + slot * stride;
#pragma unroll
    for (int j = 0; j < 32; j += 2) {
        dst[b * 16 + j / 2] =
            static_cast<uint8_t>(e2m1_code(x[j] * inverse) | (e2m1_code(x[j + 1] * inverse) << 4));
    }
    dst[di / 2 + b] = static_cast<uint8_t>(e);
}

}  // namespace

void window_pack(Stream& stream, const Tensor& kv, Tensor rows) {
    const int dh = static_cast<int>(kv.dim(1));
    DI_CHECK(dh % 32 == 0 && rows.dim(1) == window_row_bytes(dh));
    const int64_t total = kv.dim(0) * (dh / 32);
    launch(stream,
           "window_pack",
           window_pack_kernel,
           dim3(div_up(total, kThreads)),
           dim3(kThreads),
           0,
           bf16_rows(kv),
           dh,
           total,
           rows.ptr<uint8_t>(),
           rows.stride[0]);
}

void window_store(Stream& stream, const Tensor& rows, const BatchView& batch, Tensor ring) {
    DI_CHECK(ring.dense() && rows.dim(1) == ring.dim(2));
    launch(stream,
           "window_store",
           window_store_kernel,
           dim3(static_cast<unsigned>(rows.dim(0))),
           dim3(kThreads),
           0,
           rows.ptr<uint8_t>(),
           rows.stride[0],
           static_cast<int>(rows.dim(1)),
           batch_pointers(batch),
           ring.ptr<uint8_t>(),
           ring.dim(1));
}

void kv_entry_store(Stream& stream, const Tensor& c, const Tensor& slots, Tensor pool) {
    const int dh = static_cast<int>(c.dim(1));
    DI_CHECK(dh % 16 == 0 && pool.dim(1) == kv_entry_bytes(dh) && slots.dtype == DType::kI64);
    const int64_t total = c.dim(0) * (dh / 16);
    launch(stream,
           "kv_entry_store",
           kv_entry_kernel,
           dim3(div_up(total, kThreads)),
           dim3(kThreads),
           0,
           bf16_rows(c),
           dh,
           total,
           slots.ptr<int64_t>(),
           pool.ptr<uint8_t>(),
           pool.stride[0]);
}

void index_key_store(Stream& stream, const Tensor& k, const Tensor& slots, Tensor pool) {
    const int di = static_cast<int>(k.dim(1));
    DI_CHECK(di % 32 == 0 && pool.dim(1) == index_key_bytes(di) && slots.dtype == DType::kI64);
    const int64_t total = k.dim(0) * (di / 32);
    launch(stream,
           "index_key_store",
           index_key_kernel,
           dim3(div_up(total, kThreads)),
           dim3(kThreads),
           0,
           bf16_rows(k),
           di,
           total,
           slots.ptr<int64_t>(),
           pool.ptr<uint8_t>(),
           pool.stride[0]);
}

}  // namespace deepinfer::cuda
