#include "backends/cuda/cuda_stream.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace deepinfer::cuda {

std::string error_text(cudaError_t error,
                       const char* call,
                       const char* what,
                       const std::string& shape) {
    std::string name(call);
    name = name.substr(0, name.find('('));
    return name + " for " + what + (shape.empty() ? "" : " " + shape) + ": " +
           cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
}

Result<std::unique_ptr<CudaStream>> CudaStream::create(size_t scratch_bytes) {
    std::unique_ptr<CudaStream> s(new CudaStream());
    const cudaError_t error = cudaStreamCreateWithFlags(&s->stream_, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        return Status(StatusCode::kUnavailable,
                      error_text(error, "cudaStreamCreateWithFlags", "the step stream", ""));
    }
    int device = 0, major = 0, minor = 0;
    DI_CUDA(*s, cudaGetDevice(&device), "the current device", "");
    DI_CUDA(*s,
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
            "its compute capability",
            "");
    DI_CUDA(*s,
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
            "its compute capability",
            "");
    s->has_wgmma_ = major == 9 && minor == 0;
    if (s->scratch(scratch_bytes) == nullptr) return s->status_;
    s->side_.reset(new CudaStream());
    s->side_->parent_ = s.get();
    DI_CUDA(*s,
            cudaStreamCreateWithFlags(&s->side_->stream_, cudaStreamNonBlocking),
            "the side stream",
            "");
    DI_CUDA(
        *s, cudaEventCreateWithFlags(&s->forked_, cudaEventDisableTiming), "the fork event", "");
    DI_CUDA(
        *s, cudaEventCreateWithFlags(&s->joined_, cudaEventDisableTiming), "the join event", "");
    if (!s->status_.ok()) return s->status_;
    return s;
}

Stream& CudaStream::fork() {
    DI_CUDA(*this, cudaEventRecord(forked_, stream_), "a fork", "");
    DI_CUDA(*this, cudaStreamWaitEvent(side_->stream_, forked_, 0), "a fork", "");
    side_->no_early_launch();
    forked_open_ = true;
    return *side_;
}

void CudaStream::join() {
    if (!std::exchange(forked_open_, false)) return;
    DI_CUDA(*this, cudaEventRecord(joined_, side_->stream_), "a join", "");
    DI_CUDA(*this, cudaStreamWaitEvent(stream_, joined_, 0), "a join", "");
    no_early_launch();
}

CudaStream::~CudaStream() {
    // Failures at teardown have nobody left to tell; the first one is in status_ already.
    if (stream_ != nullptr) {
        cudaStreamSynchronize(stream_);
        cudaStreamDestroy(stream_);
    }
    if (side_ != nullptr) cudaStreamSynchronize(side_->stream_);
    side_.reset();
    if (forked_ != nullptr) cudaEventDestroy(forked_);
    if (joined_ != nullptr) cudaEventDestroy(joined_);
    for (auto& entry : tables_) cudaFree(entry.second.device);
    if (scratch_ != nullptr) cudaFree(scratch_);
}

void CudaStream::synchronize() {
    DI_CUDA(*this, cudaStreamSynchronize(stream_), "the step stream", "");
}

void* CudaStream::scratch(size_t bytes) {
    if (bytes <= scratch_bytes_) return scratch_;
    if (recording()) {
        record(cudaErrorStreamCaptureUnsupported,
               "scratch",
               "a recording that needs more scratch memory than the step before it",
               "(" + std::to_string(bytes) + " bytes)");
        return nullptr;
    }
    synchronize();
    cudaFree(scratch_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    ++generation_;
    const size_t want = (bytes + (size_t{1} << 20) - 1) >> 20 << 20;
    const cudaError_t error = cudaMalloc(&scratch_, want);
    if (error != cudaSuccess) {
        scratch_ = nullptr;
        record(error, "cudaMalloc", "scratch memory", "(" + std::to_string(want) + " bytes)");
        return nullptr;
    }
    scratch_bytes_ = want;
    return scratch_;
}

const ExpertPointers* CudaStream::expert_table(std::span<const ExpertWeights> experts) {
    std::vector<ExpertPointers> host(experts.size());
    for (size_t e = 0; e < experts.size(); ++e) {
        host[e] = {static_cast<const uint8_t*>(experts[e].w1.packed),
                   static_cast<const uint8_t*>(experts[e].w3.packed),
                   static_cast<const uint8_t*>(experts[e].w2.packed)};
    }
    Table& table = tables_[experts.data()];
    const size_t bytes = host.size() * sizeof(ExpertPointers);
    if (table.host.size() == host.size() &&
        std::memcmp(table.host.data(), host.data(), bytes) == 0) {
        return table.device;
    }
    const std::string shape = "(" + std::to_string(host.size()) + " experts)";
    if (recording()) {
        record(
            cudaErrorStreamCaptureUnsupported, "expert_table", "a new table in a recording", shape);
        return nullptr;
    }
    synchronize();  // kernels may still read the old table
    ++generation_;
    cudaFree(table.device);
    table.device = nullptr;
    DI_CUDA(*this,
            cudaMalloc(reinterpret_cast<void**>(&table.device), bytes),
            "an expert table",
            shape);
    DI_CUDA(*this,
            cudaMemcpy(table.device, host.data(), bytes, cudaMemcpyHostToDevice),
            "an expert table",
            shape);
    table.host = std::move(host);
    return table.device;
}

void CudaStream::record(cudaError_t error,
                        const char* call,
                        const char* what,
                        const std::string& shape) {
    cudaGetLastError();  // the runtime keeps it too; the next launch must not report it as its own
    if (parent_ != nullptr) return parent_->record(error, call, what, shape);
    if (!status_.ok()) return;
    const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted
                                                               : StatusCode::kUnavailable;
    status_ = Status(code, error_text(error, call, what, shape));
}

}  // namespace deepinfer::cuda
