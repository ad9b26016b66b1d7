// DeviceSampler: token choice where the logits are, for rows that need nothing but them.
#pragma once

#include <span>

#include "model/deepseek_v41.h"
#include "sampler/sampler.h"

namespace deepinfer {

/// One step at a time, on the model's stream. Owned by the model runner.
class DeviceSampler {
  public:
    explicit DeviceSampler(DeepseekV41& model) : model_(model) {}

    /// True if the logits are out of the host's reach and the backend chooses tokens itself.
    bool works() const;
    /// True if the row's choice depends on its logits, temperature and seed alone.
    bool takes(const RowPlan& plan, const TokenHistory& history) const;

    /// Queues the choices for `requests` (rows of `logits`). kResourceExhausted without memory.
    Status queue(const Tensor& logits, std::span<const SampleRequest> requests);
    /// After the stream is done: of the last queue(), in its order.
    std::span<const SampleChoice> choices() const;

  private:
    DeepseekV41& model_;
    HostBuffer host_requests_, host_choices_;
    Buffer requests_, choices_;
    size_t queued_ = 0;
};

}  // namespace deepinfer
