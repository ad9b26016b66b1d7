#include "backends/cuda/cuda_device.h"

namespace deepinfer::cuda {
namespace {

/// Scratch reserved at start; the largest op of a decode step of the released model fits.
constexpr size_t kScratchBytes = size_t{64} << 20;

/// An instantiated recording. Memory that ops own may move later; then it must not run any more.
class CudaGraph final : public DeviceGraph {
  public:
    CudaGraph(cudaGraphExec_t exec, uint64_t generation) : exec_(exec), generation_(generation) {}
    ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
    CudaGraph(const CudaGraph&) = delete;
    CudaGraph& operator=(const CudaGraph&) = delete;

    bool stale(const Stream& s) const override {
        return static_cast<const CudaStream&>(s).memory_generation() != generation_;
    }
    void launch(Stream& stream) override {
        CudaStream& s = cuda_stream(stream);
        DI_CHECK(!stale(s));
        if (!s.first_failure().ok()) return;
        DI_CUDA(s, cudaGraphLaunch(exec_, s.get()), "a recorded step", "");
        s.no_early_launch();
    }

  private:
    cudaGraphExec_t exec_;
    uint64_t generation_;
};

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

void* CudaDevice::raw_allocate_host(size_t bytes) {
    void* p = nullptr;
    if (cudaMallocHost(&p, bytes) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    return p;
}

void CudaDevice::raw_free_host(void* p) {
    cudaFreeHost(p);
}

std::unique_ptr<DeviceGraph> CudaDevice::capture(Stream& stream,
                                                 const std::function<void()>& queue) {
    CudaStream& s = cuda_stream(stream);
    if (!s.first_failure().ok()) return nullptr;
    s.no_early_launch();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    DI_CUDA(s,
            cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeThreadLocal),
            "the start of a recording",
            "");
    s.begin_recording();
    queue();
    s.end_recording();
    s.no_early_launch();
    DI_CUDA(s, cudaStreamEndCapture(s.get(), &graph), "the end of a recording", "");
    if (graph == nullptr) return nullptr;
    if (s.first_failure().ok())
        DI_CUDA(s, cudaGraphInstantiate(&exec, graph, 0), "a recorded step", "");
    cudaGraphDestroy(graph);
    if (exec == nullptr) return nullptr;
    return std::make_unique<CudaGraph>(exec, s.memory_generation());
}

}  // namespace deepinfer::cuda
