// SimWorld: random arrivals, aborts and preemptions against a scheduler with a fake executor, and
// the check that every request got exactly what it must get.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "engine/step_loop.h"
#include "sim/fake_executor.h"
#include "sim/sim_model.h"

namespace deepinfer::sim {

struct WorldConfig {
    uint64_t seed = 1;
    int64_t steps = 1000;
    bool async = false;
    bool threaded = false;  ///< the executor runs on a thread of its own
    bool prefix_caching = true;
    int64_t num_blocks = 40;
    int64_t max_num_seqs = 8;
    int64_t max_num_batched_tokens = 48;
    int64_t max_model_len = 160;
    int64_t threshold = 0;
    double arrivals_per_step = 0.2;
    double abort_share = 0.05;   ///< of the requests, at a random moment of their life
    double preempt_share = 0.0;  ///< of the (step, sequence) pairs, forced
    double constrained_share = 0.1;
    double siblings_share = 0.2;  ///< of the requests have n > 1
    bool with_stops = true;
    bool keep_plans = false;
    int nextn = 0;  ///< drafts that a decode verifies
    double accept_share = 0.6;
    bool varlen = false;  ///< a SpecPlanner decides how many
};

/// One finished sub-sequence.
struct Finished {
    std::vector<int32_t> tokens;
    FinishReason reason = FinishReason::kNone;
    bool operator==(const Finished&) const = default;
};

class SimWorld final : public ScheduleSink {
  public:
    explicit SimWorld(const WorldConfig& config);
    ~SimWorld() override;

    /// Runs to the end and drains. The first fault, or "".
    std::string run();

    const std::map<std::pair<uint64_t, int32_t>, Finished>& finished() const { return finished_; }
    const SchedulerStats& stats() const { return scheduler_->stats(); }
    const FakeExecutor& executor() const { return *fake_; }
    int64_t aborted_requests() const { return aborted_; }

    FinishReason on_token(const Sequence& seq,
                          const SampledToken& token,
                          FinishReason reason) override;
    void on_prefill(const Sequence& seq, const ChunkResult& result) override;
    void on_ended(const Sequence& seq, FinishReason reason) override;

  private:
    struct Given {
        std::vector<int32_t> prompt;
        std::shared_ptr<const SamplingParams> params;
        uint64_t seed = 0;
        bool constrained = false;
        int32_t n = 1;
    };

    void arrive();
    void fail(const std::string& what);
    void close(const Sequence& seq, FinishReason reason);
    double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
    int64_t between(int64_t lo, int64_t hi) {
        return std::uniform_int_distribution<int64_t>(lo, hi)(random_);
    }

    WorldConfig config_;
    std::mt19937_64 random_;
    VirtualClock clock_;
    std::unique_ptr<BlockSpace> blocks_;
    std::unique_ptr<SpecPlanner> spec_;
    std::unique_ptr<Scheduler> scheduler_;
    std::unique_ptr<FakeExecutor> fake_;
    std::unique_ptr<StepExecutor> threaded_;
    std::unique_ptr<StepLoop> loop_;
    std::map<uint64_t, Given> given_;
    std::map<std::pair<uint64_t, int32_t>, std::vector<int32_t>> got_;
    std::map<std::pair<uint64_t, int32_t>, Finished> finished_;
    std::map<uint64_t, int64_t> abort_at_;  ///< request → step
    uint64_t next_request_ = 1;
    int64_t aborted_ = 0;
    std::string fault_;
};

}  // namespace deepinfer::sim
