// Compressor pooling on the device: one thread a channel of a completed group.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

struct Floats {
    float* data;
    int64_t stride;
};
Floats floats(const Tensor& t) {
    DI_CHECK(t.dtype == DType::kF32);
    return {t.ptr<float>(), t.stride[0]};
}

__global__ void __launch_bounds__(kThreads) pool_kernel(Floats z,
                                                        Floats g,
                                                        BatchPointers b,
                                                        const float* __restrict__ tail,
                                                        int64_t tail_len,
                                                        int ratio,
                                                        const int32_t* __restrict__ entry_rows,
                                                        int dh,
                                                        uint16_t* out,
                                                        int64_t out_stride) {
    begin_kernel();
    const int c = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    if (c >= dh) return;
    const int row = entry_rows[blockIdx.y];
    const int seq = b.row_seq[row], pos = b.positions[row];
    // Channel c of group member i: from the tail if it is older than this step.
    auto member = [&](int i, bool gate) {
        const int p = pos - ratio + 1 + i;
        if (p >= b.seq_start[seq]) {
            const Floats& src = gate ? g : z;
            return src.data[(row - (pos - p)) * src.stride + c];
        }
        return tail[((static_cast<int64_t>(b.seq_slot[seq]) * tail_len + p % tail_len) * 2 +
                     (gate ? 1 : 0)) *
                        dh +
                    c];
    };
    float top = member(0, true);
    for (int i = 1; i < ratio; ++i) top = fmaxf(top, member(i, true));
    float sum = 0.0f, value = 0.0f;
    for (int i = 0; i < ratio; ++i) sum += expf(member(i, true) - top);
    for (int i = 0; i < ratio; ++i) value += expf(member(i, true) - top) / sum * member(i, false);
    out[blockIdx.y * out_stride + c] = round_bf16_bits(value);
}

__global__ void __launch_bounds__(kThreads)
    tail_kernel(Floats z, Floats g, BatchPointers b, float* tail, int64_t tail_len, int dh) {
    begin_kernel();
    const int t = static_cast<int>(blockIdx.x);
    const int seq = b.row_seq[t], pos = b.positions[t];
    const int last = b.seq_start[seq] + b.seq_rows[seq + 1] - b.seq_rows[seq] - 1;
    if (last - pos >= tail_len) return;
    float* dst =
        tail + (static_cast<int64_t>(b.seq_slot[seq]) * tail_len + pos % tail_len) * 2 * dh;
    for (int c = static_cast<int>(threadIdx.x); c < dh; c += kThreads) {
        dst[c] = z.data[t * z.stride + c];
        dst[dh + c] = g.data[t * g.stride + c];
    }
}

}  // namespace

void compress_pool(Stream& stream,
                   const Tensor& z,
                   const Tensor& g,
                   const BatchView& batch,
                   const Tensor& tail,
                   int ratio,
                   const Tensor& entry_rows,
                   Tensor out) {
    DI_CHECK(tail.dtype == DType::kF32 && tail.dense());
    const int dh = static_cast<int>(z.dim(1));
    launch(stream,
           "compress_pool",
           pool_kernel,
           dim3(div_up(dh, kThreads), static_cast<unsigned>(entry_rows.dim(0))),
           dim3(kThreads),
           0,
           floats(z),
           floats(g),
           batch_pointers(batch),
           tail.ptr<float>(),
           tail.dim(1),
           ratio,
           entry_rows.ptr<int32_t>(),
           dh,
           out.ptr<uint16_t>(),
           out.stride[0]);
}

void compress_tail_store(
    Stream& stream, const Tensor& z, const Tensor& g, const BatchView& batch, Tensor tail) {
    DI_CHECK(tail.dtype == DType::kF32 && tail.dense());
    launch(stream,
           "compress_tail_store",
           tail_kernel,
           dim3(static_cast<unsigned>(z.dim(0))),
           dim3(kThreads),
           0,
           floats(z),
           floats(g),
           batch_pointers(batch),
           tail.ptr<float>(),
           tail.dim(1),
           static_cast<int>(z.dim(1)));
}

}  // namespace deepinfer::cuda
