// HostLogits: a logits tensor as fp32 rows that the sampler can read. No copy where the device's
// memory is the host's and the rows are dense fp32.
#pragma once

#include <vector>

#include "ops/backend.h"
#include "tensor/tensor.h"

namespace deepinfer {

class HostLogits {
  public:
    /// Rows of `logits` [N, V] (accumulator type). Valid until the next read and while the tensor
    /// is.
    const float* read(Backend& backend, const Tensor& logits);

  private:
    std::vector<uint8_t> raw_;
    std::vector<float> values_;
};

}  // namespace deepinfer
