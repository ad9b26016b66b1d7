// HostLogits: a logits tensor as fp32 rows that the sampler can read. No copy where the device's
// memory is the host's and the rows are dense fp32; else through pinned memory.
#pragma once

#include <vector>

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace deepinfer {

class HostLogits {
  public:
    /// Rows of `logits` [N, V] (accumulator type). Valid until the next read and while the tensor
    /// is. nullptr without rows.
    const float* read(Backend& backend, const Tensor& logits);

  private:
    HostBuffer raw_;
    std::vector<float> values_;  ///< when the type is not fp32
};

}  // namespace deepinfer
