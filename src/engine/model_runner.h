// ModelRunner: the StepExecutor that runs the real model. Flattens a plan to a Batch, runs
// forward(), samples. Keeps per slot what sampling looks back on.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/cache_copier.h"
#include "engine/clock.h"
#include "engine/step_executor.h"
#include "model/deepseek_v41.h"
#include "sampler/sampler.h"

namespace deepinfer {

/// One thread at a time: the one that launches.
class ModelRunner final : public StepExecutor {
  public:
    /// model, cache and clock outlive it. `eos_token_id` is what min_tokens bans.
    ModelRunner(DeepseekV41& model,
                const CacheView& cache,
                int32_t eos_token_id,
                const Clock& clock);
    ~ModelRunner() override;

    void launch(std::shared_ptr<const StepPlan> plan) override;
    void launch_sampling(std::vector<RowMask> masks) override;
    StepResult collect() override;

  private:
    struct Slot {
        uint32_t epoch = 0;
        std::vector<int32_t> tokens;  ///< all known ids: prompt and outputs
        TokenHistory history;
        std::optional<RowPlan> plan;
        std::shared_ptr<const SamplingParams> params;
        uint64_t seed = 0;
        uint32_t index = 0;
    };
    /// One logits row and what is wanted of it.
    struct RowJob {
        size_t chunk = 0;
        int64_t logit_row = 0;
        int32_t position = 0;  ///< of the input row
        bool sample = false;   ///< else: log-probability of the known next token
        size_t prompt_at = 0;  ///< index into the chunk's prompt_logprobs
        const int32_t* mask = nullptr;
    };

    void start(const SlotStart& s);
    Batch build_batch(const StepPlan& plan);
    void run_jobs(const std::vector<RowJob>& jobs);
    void run_job(const RowJob& job, SamplerWorkspace& workspace);
    void commit_samples(const std::vector<RowJob>& jobs);

    DeepseekV41& model_;
    const CacheView& cache_;
    CacheCopier copier_;
    const Clock& clock_;
    Sampler sampler_;
    std::vector<Slot> slots_;
    std::vector<float> host_logits_;  ///< when the device's memory or type needs a copy
    const float* logits_ = nullptr;   ///< [L, V] of the step being sampled

    std::shared_ptr<const StepPlan> plan_;  ///< launched, its result not complete
    StepResult result_;
    std::vector<RowJob> constrained_;
    std::deque<StepResult> done_;
};

}  // namespace deepinfer
