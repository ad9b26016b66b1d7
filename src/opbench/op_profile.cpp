#include "deepinfer/op_profile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

#include "opbench/op_costs.h"
#include "ops/backend.h"
#include "ops/numeric_class.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

enum class Phase { kOff, kStarting, kOn, kStopping };

struct Profile {
    OpTable base;                ///< of the backend that is open
    Backend* backend = nullptr;  ///< under mutex
    std::atomic<Phase> phase{Phase::kOff};
    std::mutex mutex;
    int64_t steps = 0;
    struct Sum {
        int64_t calls = 0;
        double seconds = 0;
    };
    std::map<std::tuple<std::string, double, double, double>, Sum> sums;

    void add(const char* op, const CallCost& cost, double seconds) {
        const std::lock_guard<std::mutex> lock(mutex);
        Sum& s = sums[{op, cost.bytes, cost.flops, cost.stored}];
        ++s.calls;
        s.seconds += seconds;
    }
    /// The first op of a step.
    void at_step() {
        Phase p = phase.load();
        if (p == Phase::kStarting) phase.compare_exchange_strong(p, Phase::kOn);
        if (p == Phase::kStopping) phase.compare_exchange_strong(p, Phase::kOff);
        if (phase.load() == Phase::kOn) {
            const std::lock_guard<std::mutex> lock(mutex);
            ++steps;
        }
    }
};

Profile& profile() {
    static Profile p;
    return p;
}

template <auto kMember>
struct OpName;

template <auto kMember, typename... Args>
void profiled(Stream& stream, Args... args) {
    Profile& p = profile();
    if constexpr (std::is_same_v<OpTag<kMember>, OpTag<&OpTable::embed_streams>>) p.at_step();
    const Phase phase = p.phase.load(std::memory_order_relaxed);
    if (phase != Phase::kOn && phase != Phase::kStopping) {
        (p.base.*kMember)(stream, args...);
        return;
    }
    const Clock::time_point begin = Clock::now();
    (p.base.*kMember)(stream, args...);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    p.add(OpName<kMember>::value, call_cost(OpTag<kMember>{}, args...), seconds);
}

template <auto kMember, typename... Args>
void wrap_site(OpTable* table, void (*base)(Stream&, Args...)) {
    if (base == nullptr) return;
    void (*const kernel)(Stream&, Args...) = &profiled<kMember, Args...>;
    OpTable alone;  // to read what the kernel beneath promises
    alone.*kMember = base;
    const OpSite site = op_sites(alone).front();
    declare_kernel(kernel_id(kernel), "profiled " + site.kernel_name, site.numeric_class);
    table->*kMember = kernel;
}

// clang-format off
#define DI_PROFILED_OPS(X) \
    X(rms_norm) X(linear) X(grouped_o_proj) X(quant_q8) X(quant_q4m) X(scale_bf16) X(rope_table) \
    X(rope) X(mhc_mixes) X(mhc_collapse) X(mhc_expand) X(streams_mean) X(engram_hash) \
    X(engram_lookup) X(engram_gate) X(embed_streams) X(gather_rows) X(window_pack) \
    X(window_store) X(kv_entry_store) X(index_key_store) X(compress_pool) X(compress_tail_store) \
    X(index_scores) X(candidate_blocks) X(topk_select) X(sparse_attention) X(router_scores) \
    X(router_topk) X(router_weights) X(swiglu) X(moe_ffn) X(mhc_step) X(rms_norm_q8)
// clang-format on
#define DI_OP_NAME(op)                            \
    template <>                                   \
    struct OpName<&OpTable::op> {                 \
        static constexpr const char* value = #op; \
    };
DI_PROFILED_OPS(DI_OP_NAME)
#undef DI_OP_NAME

class ProfiledBackend final : public Backend {
  public:
    explicit ProfiledBackend(std::unique_ptr<Backend> base) : base_(std::move(base)) {
        ops_ = base_->ops();
#define DI_WRAP(op) wrap_site<&OpTable::op>(&ops_, base_->ops().op);
        DI_PROFILED_OPS(DI_WRAP)
#undef DI_WRAP
        Profile& p = profile();
        const std::lock_guard<std::mutex> lock(p.mutex);
        p.base = base_->ops();
        p.backend = base_.get();
    }
    ~ProfiledBackend() override {
        Profile& p = profile();
        const std::lock_guard<std::mutex> lock(p.mutex);
        if (p.backend == base_.get()) p.backend = nullptr;
    }
    std::string name() const override {
        return base_->name();
    }
    std::string description() const override {
        return base_->description();
    }
    Device& device() override {
        return base_->device();
    }
    const OpTable& ops() const override {
        return ops_;
    }
    Status prepare(WeightMatrix& w) override {
        return base_->prepare(w);
    }
    bool reads_stored(const WeightMatrix& w) const override {
        return base_->reads_stored(w);
    }
    double measure_roof(Roof roof, int64_t working_set) override {
        return base_->measure_roof(roof, working_set);
    }
    Status prepare(Tensor& t) override {
        return base_->prepare(t);
    }

  private:
    std::unique_ptr<Backend> base_;
    OpTable ops_;
};
#undef DI_PROFILED_OPS

double measure(Roof roof, int64_t working_set) {
    Profile& p = profile();
    const std::lock_guard<std::mutex> lock(p.mutex);
    return p.backend == nullptr ? 0 : p.backend->measure_roof(roof, working_set);
}

}  // namespace

void register_profiled_backend(const std::string& name) {
    register_backend(
        name + "+profile", [name](const BackendOptions& o) -> Result<std::unique_ptr<Backend>> {
            Result<std::unique_ptr<Backend>> base = create_backend(name, o);
            if (!base.ok()) return base.status();
            return std::unique_ptr<Backend>(new ProfiledBackend(std::move(base.value())));
        });
}

void start_op_profile() {
    Profile& p = profile();
    const std::lock_guard<std::mutex> lock(p.mutex);
    p.sums.clear();
    p.steps = 0;
    p.phase = Phase::kStarting;
}

std::vector<ProfiledOp> stop_op_profile(int64_t* steps) {
    Profile& p = profile();
    Phase on = Phase::kOn;
    p.phase.compare_exchange_strong(on, Phase::kStopping);
    // A step that runs is finished; the next one, or 200 ms without one, ends the recording.
    for (int i = 0; i < 200 && p.phase.load() == Phase::kStopping; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    p.phase = Phase::kOff;
    const std::lock_guard<std::mutex> lock(p.mutex);
    if (steps != nullptr) *steps = p.steps;
    std::vector<ProfiledOp> out;
    for (const auto& [key, sum] : p.sums) {
        out.push_back({std::get<0>(key),
                       sum.calls,
                       sum.seconds,
                       std::get<1>(key),
                       std::get<2>(key),
                       std::get<3>(key)});
    }
    return out;
}

double profiled_read_roof(double working_set_bytes) {
    return measure(Roof::kRead, std::max<int64_t>(1, static_cast<int64_t>(working_set_bytes)));
}

double profiled_dot_roof() {
    return measure(Roof::kDot, 0);
}

}  // namespace deepinfer
