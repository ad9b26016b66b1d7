#include "backends/cuda/cuda_device.h"

namespace deepinfer::cuda {
namespace {

/// Scratch reserved at start; the largest op of a decode step of the released model fits.
constexpr size_t kScratchBytes = size_t{64} << 20;

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(int index) {
    int count = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found != cudaSuccess) {
        cudaGetLastError();
        return Status(StatusCode::kUnavailable,
                      error_text(found, "cudaGetDeviceCount", "the list of devices", ""));
    }
    if (index < 0 || index >= count) {
        return Status(StatusCode::kUnavailable,
                      "CUDA device " + std::to_string(index) +
                          " does not exist; this machine has " + std::to_string(count));
    }
    cudaDeviceProp prop{};
    cudaError_t error = cudaSetDevice(index);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&prop, index);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return Status(StatusCode::kUnavailable,
                      error_text(error, "cudaSetDevice", "device", std::to_string(index)));
    }
    if (prop.major != 9 || prop.minor != 0) {
        return Status(StatusCode::kUnimplemented,
                      std::string(prop.name) + " has compute capability " +
                          std::to_string(prop.major) + "." + std::to_string(prop.minor) +
                          "; the kernels are built for 9.0");
    }
    std::unique_ptr<CudaDevice> d(new CudaDevice());
    d->name_ = "cuda:" + std::to_string(index) + " " + prop.name;
    Result<std::unique_ptr<CudaStream>> stream = CudaStream::create(kScratchBytes);
    if (!stream.ok()) return stream.status();
    d->stream_ = std::move(stream).value();
    return d;
}

void CudaDevice::copy_to_device(Stream& s, void* dst, const void* src, size_t bytes) {
    if (bytes == 0) return;
    cuda_stream(s).no_early_launch();
    DI_CUDA(cuda_stream(s),
            cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, cuda_stream(s).get()),
            "a copy to the device",
            "(" + std::to_string(bytes) + " bytes)");
}

void CudaDevice::copy_to_host(Stream& s, void* dst, const void* src, size_t bytes) {
    if (bytes == 0) return;
    cuda_stream(s).no_early_launch();
    DI_CUDA(cuda_stream(s),
            cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, cuda_stream(s).get()),
            "a copy to the host",
            "(" + std::to_string(bytes) + " bytes)");
}

void CudaDevice::fill_zero(Stream& s, void* dst, size_t bytes) {
    if (bytes == 0) return;
    cuda_stream(s).no_early_launch();
    DI_CUDA(cuda_stream(s),
            cudaMemsetAsync(dst, 0, bytes, cuda_stream(s).get()),
            "a fill",
            "(" + std::to_string(bytes) + " bytes)");
}

size_t CudaDevice::free_bytes() const {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

void* CudaDevice::raw_allocate(size_t bytes) {
    void* p = nullptr;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError();  // out of memory is the caller's to report; the next launch must not
                             // find it
        return nullptr;
    }
    return p;
}

void CudaDevice::raw_free(void* p) {
    // Work that still uses the memory is on the step stream; freeing waits for it.
    cudaFree(p);
}

}  // namespace deepinfer::cuda
