#include "backends/cpu/cpu_backend.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/cpu_op_table.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/kernel_tables.h"
#include "backends/cpu/packed_weight.h"
#include "base/env_flags.h"
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

    /// Packs the weight (packed_weight.h).
    Status prepare(WeightMatrix& w) override {
        if (w.weight == nullptr)
            return Status(StatusCode::kInvalidArgument, "prepare: a weight without data");
        weights_.push_back(std::make_unique<cpu::PackedWeight>(w, isa_, &arena_));
        w.packed = weights_.back().get();
        weights_.back()->ready(device_.stream());
        return {};
    }
    bool reads_stored(const WeightMatrix& w) const override {
        return w.packed == nullptr || !static_cast<const cpu::PackedWeight*>(w.packed)->packed();
    }
    Status prepare(Tensor&) override { return {}; }

    double measure_roof(Roof roof, int64_t working_set) override {
        const cpu::RoofKernels& k = cpu::kernels(isa_).roof;
        return roof == Roof::kDot ? dot_roof(k) : read_roof(k, working_set);
    }

  private:
    /// The sum of the threads' own rates: one that the system woke late was late, not slow.
    double dot_roof(const cpu::RoofKernels& k) {
        const int64_t threads = device_.num_threads();
        std::vector<double> rates(static_cast<size_t>(threads), 0.0);
        parallel_for(device_.stream(), threads, 1, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                const auto begin = std::chrono::steady_clock::now();
                std::chrono::duration<double> spent{};
                double flops = 0;
                do {
                    flops += k.dot();
                    spent = std::chrono::steady_clock::now() - begin;
                } while (spent < std::chrono::milliseconds(2));
                rates[static_cast<size_t>(i)] = flops / spent.count();
            }
        });
        return std::accumulate(rates.begin(), rates.end(), 0.0);
    }

    /// A buffer beyond every cache, of which each call reads the next part of each thread's share;
    /// or `working_set` bytes of it, again and again.
    double read_roof(const cpu::RoofKernels& k, int64_t working_set) {
        constexpr int64_t kBuffer = int64_t{512} << 20, kPart = int64_t{16} << 20, kLeast = 4096;
        const int64_t threads = device_.num_threads();
        if (read_buffer_ == nullptr) read_buffer_ = arena_.allocate(kBuffer);
        if (read_buffer_ == nullptr) return 0;
        if (!read_touched_) {  // pages of zeros are one page
            std::memset(read_buffer_, 1, static_cast<size_t>(kBuffer));
            read_touched_ = true;
        }
        const bool again = working_set > 0 && working_set < kBuffer;
        const int64_t share = again ? std::max(kLeast, working_set / threads / kLeast * kLeast)
                                    : kBuffer / threads / kPart * kPart;
        const int64_t part = again ? share : kPart, times = std::max<int64_t>(1, kPart / part);
        if (share == 0 || threads * share > kBuffer) return 0;
        const int64_t at = read_at_ % share / part * part;
        read_at_ += part;
        std::atomic<int64_t> seen{0};  // depends on every byte, so that none is left out
        const auto read = [&] {
            const auto begin = std::chrono::steady_clock::now();
            parallel_for(device_.stream(), threads, 1, [&](int64_t first, int64_t last) {
                for (int64_t i = first; i < last; ++i) {
                    for (int64_t n = 0; n < times; ++n)
                        seen += k.read(read_buffer_ + i * share + at, part) > 1e30f;
                }
            });
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        };
        if (again) read();  // brings the set as near as it gets
        return static_cast<double>(threads * times * part) / read();
    }

    cpu::Isa isa_;
    HostDevice device_;
    OpTable ops_;
    cpu::PanelArena arena_;
    uint8_t* read_buffer_ = nullptr;  ///< of measure_roof
    bool read_touched_ = false;
    int64_t read_at_ = 0;
    std::vector<std::unique_ptr<cpu::PackedWeight>> weights_;
};

}  // namespace

void register_cpu_backend() {
    register_backend("cpu", [](const BackendOptions& o) -> Result<std::unique_ptr<Backend>> {
        Result<cpu::Isa> isa = cpu::choose_isa(o.isa);
        if (!isa.ok()) return isa.status();
        const int n = o.num_threads > 0 ? o.num_threads : ThreadPool::available_threads();
        const auto pinned = env_bool("DEEPINFER_AFFINITY");
        if (!pinned.ok()) return pinned.status();
        cpu_set_t cores;
        if (pinned.value().value_or(false) && sched_getaffinity(0, sizeof cores, &cores) == 0 &&
            CPU_COUNT(&cores) < n) {
            return Status(StatusCode::kInvalidArgument,
                          "DEEPINFER_AFFINITY=1 needs a core for each of " + std::to_string(n) +
                              " threads, this process may use " +
                              std::to_string(CPU_COUNT(&cores)));
        }
        return std::unique_ptr<Backend>(new CpuBackend(isa.value(), n));
    });
}

}  // namespace deepinfer
