// Row movement on the device.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) embed_kernel(
    const T* __restrict__ embed, const int32_t* __restrict__ ids, int hc, int d, uint16_t* out) {
    begin_kernel();
    const int64_t row = blockIdx.x;
    const T* src = embed + static_cast<int64_t>(ids[row]) * d;
    for (int i = static_cast<int>(threadIdx.x); i < d; i += kThreads) {
        uint16_t bits;
        if constexpr (sizeof(T) == 4)
            bits = round_bf16_bits(src[i]);
        else
            bits = src[i];
        for (int s = 0; s < hc; ++s) out[(row * hc + s) * d + i] = bits;
    }
}

/// T is the widest word that divides the row and both addresses.
template <typename T>
__global__ void __launch_bounds__(kThreads) gather_kernel(const T* __restrict__ src,
                                                          const int32_t* __restrict__ rows,
                                                          int64_t words,
                                                          T* out) {
    begin_kernel();
    const T* s = src + static_cast<int64_t>(rows[blockIdx.x]) * words;
    T* d = out + static_cast<int64_t>(blockIdx.x) * words;
    for (int64_t i = threadIdx.x; i < words; i += kThreads) d[i] = s[i];
}

template <typename T>
void gather(Stream& stream, const Tensor& src, const Tensor& rows, Tensor out, int64_t row_bytes) {
    launch(stream,
           "gather_rows",
           gather_kernel<T>,
           dim3(static_cast<unsigned>(rows.dim(0))),
           dim3(kThreads),
           0,
           src.ptr<T>(),
           rows.ptr<int32_t>(),
           row_bytes / static_cast<int64_t>(sizeof(T)),
           out.ptr<T>());
}

}  // namespace

void embed_streams(Stream& stream, const WeightMatrix& embed, const Tensor& ids, Tensor out) {
    DI_CHECK(out.dense() && (embed.dtype == DType::kBF16 || embed.dtype == DType::kF32));
    const dim3 grid(static_cast<unsigned>(ids.dim(0)));
    const int hc = static_cast<int>(out.dim(1)), d = static_cast<int>(out.dim(2));
    if (embed.dtype == DType::kBF16) {
        launch(stream,
               "embed_streams",
               embed_kernel<uint16_t>,
               grid,
               dim3(kThreads),
               0,
               static_cast<const uint16_t*>(embed.weight),
               ids.ptr<int32_t>(),
               hc,
               d,
               out.ptr<uint16_t>());
    } else {
        launch(stream,
               "embed_streams",
               embed_kernel<float>,
               grid,
               dim3(kThreads),
               0,
               static_cast<const float*>(embed.weight),
               ids.ptr<int32_t>(),
               hc,
               d,
               out.ptr<uint16_t>());
    }
}

void gather_rows(Stream& stream, const Tensor& src, const Tensor& rows, Tensor out) {
    DI_CHECK(src.dense() && out.dense() && src.dtype == out.dtype);
    if (rows.dim(0) == 0) return;
    const int64_t row_bytes = src.bytes() / src.dim(0);
    const uintptr_t mix = reinterpret_cast<uintptr_t>(src.data) |
                          reinterpret_cast<uintptr_t>(out.data) | static_cast<uintptr_t>(row_bytes);
    if (mix % 16 == 0) return gather<uint4>(stream, src, rows, out, row_bytes);
    if (mix % 4 == 0) return gather<uint32_t>(stream, src, rows, out, row_bytes);
    gather<uint8_t>(stream, src, rows, out, row_bytes);
}

}  // namespace deepinfer::cuda
