#include "backends/ref/ref_backend.h"

#include <memory>
#include <utility>

#include "device/host_device.h"
#include "ops/backend.h"

namespace deepinfer {
namespace {

class RefBackend final : public Backend {
  public:
    RefBackend(OpTable ops, int num_threads) : device_(num_threads), ops_(ops) {}

    std::string name() const override { return ops_.name; }
    std::string description() const override {
        return std::string(ops_.name) + " twins, " + std::to_string(device_.num_threads()) +
               " threads";
    }
    Device& device() override { return device_; }
    const OpTable& ops() const override { return ops_; }
    Status prepare(WeightMatrix&) override { return {}; }
    Status prepare(Tensor&) override { return {}; }

  private:
    HostDevice device_;
    OpTable ops_;
};

BackendFactory factory(OpTable (*table)()) {
    return [table](const BackendOptions& o) -> Result<std::unique_ptr<Backend>> {
        const int n = o.num_threads > 0 ? o.num_threads : ThreadPool::available_threads();
        return std::unique_ptr<Backend>(new RefBackend(table(), n));
    };
}

}  // namespace

void register_ref_backends() {
    register_backend("ref", factory(&ref_op_table));
    register_backend("exact", factory(&exact_op_table));
}

}  // namespace deepinfer
