// StepGraphs: recordings of whole steps by their shapes, so that a decode step is one launch.
//
// The first step of a shape runs op by op, the second is recorded, later ones are replayed. Inputs
// stand in fixed device memory (StepInputs), activations in the workspace, so equal shapes mean
// equal calls. Owned by the model, used by the thread that runs its steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/device.h"

namespace deepinfer {

class StepGraphs {
  public:
    /// `capacity`: recordings kept; the one that was not used for longest makes room.
    explicit StepGraphs(size_t capacity = 64) : capacity_(capacity) {}

    /// Queues `step` on the device's stream, as a replay where there is a recording for `key`.
    void run(Device& device, const std::vector<int64_t>& key, const std::function<void()>& step);

    int64_t num_recorded() const { return num_recorded_; }
    int64_t num_replayed() const { return num_replayed_; }

  private:
    struct Entry {
        std::unique_ptr<DeviceGraph> graph;  ///< null: the shape was seen once
        uint64_t used = 0;
    };
    void make_room();

    const size_t capacity_;
    std::map<std::vector<int64_t>, Entry> entries_;
    uint64_t now_ = 0;
    int64_t num_recorded_ = 0, num_replayed_ = 0;
};

}  // namespace deepinfer
