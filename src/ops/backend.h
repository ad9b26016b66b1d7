// Backend: a device, its ops, and how weights get there. Chosen by name at start-up.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/op_table.h"
#include "ops/weight_matrix.h"

namespace deepinfer {

struct BackendOptions {
    int num_threads = 0;  ///< host threads; 0 = what the container allows
    int device_index = 0;
    std::string isa;  ///< CPU: force a lower instruction set; empty = best
};

/// What bounds an op: bytes moved or products computed.
enum class Roof { kRead, kDot };

class Backend {
  public:
    virtual ~Backend() = default;

    virtual std::string name() const = 0;  ///< "cpu", "cuda", "ref", "exact"
    virtual std::string description()
        const = 0;  ///< one line for the start-up log: ISA, device, kernels
    virtual Device& device() = 0;
    virtual const OpTable& ops() const = 0;

    /// Brings one weight to the device: on entry weight and scale point to host memory (mmapped,
    /// valid as long as the model lives); on return to memory that the ops read. Host backends may
    /// keep them.
    virtual Status prepare(WeightMatrix& w) = 0;
    /// False once prepare(w) has made a copy that serves every op on it: the caller may give the
    /// host memory back that held the stored form.
    virtual bool reads_stored(const WeightMatrix&) const { return true; }
    /// The same for a dense tensor (host pointer in, device pointer out).
    virtual Status prepare(Tensor& t) = 0;
    /// What this machine can do right now, on all threads of the backend, measured in a few
    /// milliseconds: bytes a second of sequential reading beyond the caches, or flops a second of
    /// the widest bf16 (else fp32) multiply-add that the kernels use. 0: the backend cannot tell.
    /// `working_set` (of reading): a set of that many bytes, read again and again; 0: beyond the
    /// caches.
    virtual double measure_roof(Roof, int64_t /*working_set*/ = 0) { return 0; }
};

using BackendFactory = std::function<Result<std::unique_ptr<Backend>>(const BackendOptions&)>;

/// Called by apps/main at start-up (register_*_backend of each linked backend), before any thread
/// exists.
void register_backend(const std::string& name, BackendFactory factory);
/// kInvalidArgument with the list of compiled backends when the name is unknown.
Result<std::unique_ptr<Backend>> create_backend(const std::string& name,
                                                const BackendOptions& options);
std::vector<std::string> compiled_backends();

}  // namespace deepinfer
