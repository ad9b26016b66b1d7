// Checkpoint: a validated model directory, mapped read-only.
//
// open() checks everything before any weight is used: config rules, index, shard headers (bounds,
// overlaps, sizes), the exact set of tensor names that the config implies, dtypes, shapes, NaN
// scales. All missing and unexpected names are listed together. Engram tables are never read or
// scanned whole. generate() is a checkpoint without files (synthetic.h): a tensor's bytes come into
// being when it is first found.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/hf_config.h"
#include "checkpoint/synthetic.h"
#include "deepinfer/status.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// One stored tensor: bytes in a mapped shard. FP4 weights (stored as I8 [n, k/2]) have dtype kFP4
/// and shape [n, k].
struct StoredTensor {
    std::string name;
    Tensor view;        ///< host memory, read-only in spirit
    std::string shard;  ///< file name, for messages
    std::string dtype;  ///< safetensors spelling, for reports
};

class Checkpoint {
  public:
    ~Checkpoint();
    Checkpoint(Checkpoint&&) noexcept;
    Checkpoint& operator=(Checkpoint&&) noexcept;

    /// kNotFound or kInvalidFile with found / expected / where.
    static Result<Checkpoint> open(const std::string& dir);
    /// A generated checkpoint. kResourceExhausted if not even the addresses can be had.
    static Result<Checkpoint> generate(SyntheticModel model);

    /// Directory of the files; geometry and seed ("cpu-slice:1") of a generated checkpoint.
    const std::string& dir() const;
    const ModelConfig& config() const;
    /// Every tensor that the config implies (ignored leftovers are not among them), backbone first.
    /// In a generated one, bytes are there only after find().
    const std::vector<StoredTensor>& tensors() const;
    /// nullptr if the checkpoint does not hold it. Thread-safe.
    const StoredTensor* find(const std::string& name) const;
    /// Its bytes are not read any more (until the next find): gives generated memory back. Does
    /// nothing for files, whose pages the system drops by itself. `name` is one that find() knows.
    void release(const std::string& name) const;

  private:
    struct Impl;
    explicit Checkpoint(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
