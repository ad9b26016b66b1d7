#include "backends/cpu/cpu_backend.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/cpu_op_table.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/packed_weight.h"
#include "device/host_device.h"
#include "ops/backend.h"

namespace deepinfer {
namespace {

class CpuBackend final : public Backend {
  public:
    CpuBackend(cpu::Isa isa, int num_threads)
        : isa_(isa), device_(num_threads), ops_(cpu::cpu_op_table(isa)) {}

    std::string name() const override { return "cpu"; }
    std::string description() const override {
        return std::string("cpu, ") + cpu::isa_name(isa_) + " kernels, " +
               std::to_string(device_.num_threads()) + " threads";
    }
    Device& device() override { return device_; }
    const OpTable& ops() const override { return ops_; }

    /// Registers the weight; its panels are made on first use (packed_weight.h says why).
    Status prepare(WeightMatrix& w) override {
        if (w.weight == nullptr)
            return Status(StatusCode::kInvalidArgument, "prepare: a weight without data");
        weights_.push_back(std::make_unique<cpu::PackedWeight>(w, isa_, &arena_));
        w.packed = weights_.back().get();
        return {};
    }
    Status prepare(Tensor&) override { return {}; }

  private:
    cpu::Isa isa_;
    HostDevice device_;
    OpTable ops_;
    cpu::PanelArena arena_;
    std::vector<std::unique_ptr<cpu::PackedWeight>> weights_;
};

}  // namespace

void register_cpu_backend() {
    register_backend("cpu", [](const BackendOptions& o) -> Result<std::unique_ptr<Backend>> {
        Result<cpu::Isa> isa = cpu::choose_isa(o.isa);
        if (!isa.ok()) return isa.status();
        const int n = o.num_threads > 0 ? o.num_threads : ThreadPool::available_threads();
        return std::unique_ptr<Backend>(new CpuBackend(isa.value(), n));
    });
}

}  // namespace deepinfer
