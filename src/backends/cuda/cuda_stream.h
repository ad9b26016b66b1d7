// CudaStream: the device queue that every CUDA op runs on, its scratch memory, and the first
// failure seen.
//
// Ops return nothing, so a failed launch or a lost device is kept here: status() stays at the first
// error (kUnavailable, naming call, kernel and shape) and the owner of the step asks for it after
// synchronize(). One thread at a time, as Device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "deepinfer/status.h"
#include "device/stream.h"
#include "ops/weight_matrix.h"

namespace deepinfer::cuda {

/// Packed matrices of one expert, as the grouped kernels read them from device memory.
struct ExpertPointers {
    const uint8_t* w1;
    const uint8_t* w3;
    const uint8_t* w2;
};

class CudaStream final : public Stream {
  public:
    /// The calling thread's current device must be the one the stream is for.
    static Result<std::unique_ptr<CudaStream>> create(size_t scratch_bytes);
    ~CudaStream() override;

    void synchronize() override;
    cudaStream_t get() const { return stream_; }
    /// The kernels of *_sm90.cu run here (compute capability 9.0).
    bool has_wgmma() const { return parent_ != nullptr ? parent_->has_wgmma_ : has_wgmma_; }

    /// Scratch of one op call: at least `bytes`, 256-byte aligned, free again when the op's kernels
    /// are done (stream order makes reuse by the next op safe; the second queue has its own).
    /// Growing waits for the stream and makes recorded graphs stale (scratch_generation), so a step
    /// that is recorded must have run once before. Returns nullptr (and keeps a status) when the
    /// memory is not there, or when it would have to grow in the middle of a recording.
    void* scratch(size_t bytes);

    /// Changes whenever scratch or a table moves: a graph recorded before reads freed memory.
    uint64_t memory_generation() const {
        return generation_ + (side_ != nullptr ? side_->generation_ : 0);
    }
    /// Between them work is recorded (cuda_device.cpp).
    void begin_recording() { recording_ = true; }
    void end_recording() { recording_ = false; }
    bool recording() const { return parent_ != nullptr ? parent_->recording() : recording_; }

    /// Device table of the experts' packed matrices; uploaded when the list was not seen before.
    const ExpertPointers* expert_table(std::span<const ExpertWeights> experts);

    /// A second queue for independent work of one op: fork() lets it start after everything queued
    /// so far, join() makes this stream wait for it. Failures are kept here. Captured graphs get a
    /// parallel branch.
    Stream& fork() override;
    void join() override;

    /// True if the next kernel may be launched before the previous one has finished (it waits by
    /// itself): not for the first after a fork, join or copy. Asking uses it up.
    bool take_early_launch() { return std::exchange(early_launch_, true); }
    void no_early_launch() { early_launch_ = false; }

    /// Keeps the first failure. `what` is a kernel or a copy, `shape` its sizes.
    void record(cudaError_t error, const char* call, const char* what, const std::string& shape);
    Status status() const override { return first_failure(); }
    /// The same without a copy.
    const Status& first_failure() const {
        return parent_ != nullptr ? parent_->first_failure() : status_;
    }

  private:
    CudaStream() = default;
    struct Table {
        std::vector<ExpertPointers> host;
        ExpertPointers* device = nullptr;
    };

    cudaStream_t stream_ = nullptr;
    void* scratch_ = nullptr;
    size_t scratch_bytes_ = 0;
    std::unordered_map<const void*, Table> tables_;
    std::unique_ptr<CudaStream> side_;  ///< made by create(); has no side of its own
    CudaStream* parent_ = nullptr;
    cudaEvent_t forked_ = nullptr, joined_ = nullptr;
    bool early_launch_ = false;
    bool forked_open_ = false;  ///< forked since the last join
    bool recording_ = false;
    bool has_wgmma_ = false;
    uint64_t generation_ = 0;
    Status status_;
};

/// The text of a failed call: "cudaMalloc for expert table (384 experts): out of memory
/// (cudaErrorMemoryAllocation)".
std::string error_text(cudaError_t error,
                       const char* call,
                       const char* what,
                       const std::string& shape);

inline CudaStream& cuda_stream(Stream& s) {
    return static_cast<CudaStream&>(s);
}

}  // namespace deepinfer::cuda

/// Runs a CUDA call on behalf of `stream` and keeps its failure there, named by `what` and `shape`.
#define DI_CUDA(stream, call, what, shape)                       \
    do {                                                         \
        const cudaError_t di_cuda_error_ = (call);               \
        if (di_cuda_error_ != cudaSuccess) {                     \
            (stream).record(di_cuda_error_, #call, what, shape); \
        }                                                        \
    } while (false)
