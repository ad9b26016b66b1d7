// ModelRunner: the StepExecutor that runs the real model. Drafts, flattens a plan to a Batch, runs
// forward(), samples and verifies. Keeps per slot what sampling looks back on.
//
// Read next: draft_proposer.h, draft_verifier.h.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cache_copier.h"
#include "engine/clock.h"
#include "engine/device_sampler.h"
#include "engine/draft_proposer.h"
#include "engine/draft_verifier.h"
#include "engine/host_logits.h"
#include "engine/slot_state.h"
#include "engine/step_executor.h"
#include "model/deepseek_v41.h"
#include "model/vision_encoder.h"
#include "sampler/sampler.h"

namespace deepinfer {

/// One thread at a time: the one that launches.
class ModelRunner final : public StepExecutor {
  public:
    struct Options {
        int32_t eos_token_id = -1;  ///< what min_tokens bans and what ends a sequence
        int lookback = 0;           ///< ids before a chunk that Engram reads
        SpecRule rule = SpecRule::kCoupled;
        int nextn = 0;  ///< drafts per proposal; > 0 needs a model loaded for drafting
        VisionEncoder* encoder = nullptr;  ///< null: plans hold no pictures
        int64_t num_ids = 0;               ///< ids that may be chosen are below, all if 0
    };
    /// model, cache and clock outlive it.
    ModelRunner(DeepseekV41& model,
                const CacheView& cache,
                const Options& options,
                const Clock& clock);
    ~ModelRunner() override;

    void launch(std::shared_ptr<const StepPlan> plan) override;
    std::vector<ChunkDrafts> drafts() override;
    void launch_sampling(std::vector<RowMask> masks) override;
    StepResult collect() override;

    void force_acceptance(double drafts) { verifier_.force_acceptance(drafts); }
    void set_draft_override(DraftOverride f) { proposer_.set_override(std::move(f)); }

  private:
    /// A chunk whose last rows are sampled.
    struct SampleJob {
        size_t chunk = 0;
        int64_t logit_row = 0;  ///< of its first sampled row
        int64_t choice = -1;    ///< index of its first row's choice made on the device
    };
    /// One prompt row: the log-probability of the known next token.
    struct ScoreJob {
        size_t chunk = 0;
        int64_t logit_row = 0;
        int32_t position = 0;  ///< of the input row
        size_t prompt_at = 0;  ///< index into the chunk's prompt_logprobs
    };

    SlotState& slot_of(const ChunkPlan& c) { return slots_[static_cast<size_t>(c.slot)]; }
    void propose(const StepPlan& plan);
    /// Copies rings and tails, and how far the rings reach.
    void copy_slot(int32_t from, int32_t to);
    void trim_proposals(const StepPlan& plan);
    void encode(const EncodePlan& plan);
    /// The rows of `chunk` that lie inside pictures, and its dead look-backs.
    void add_image_rows(const SlotState& slot, SequenceChunk* chunk, Batch* batch) const;
    Batch build_batch(const StepPlan& plan);
    void add_logit_rows(size_t chunk, int32_t first_row, Batch* batch);
    /// Waits for the step on the device, and brings what sampling needs to the host: choices made
    /// there for free jobs that allow it, the logits if anything is left.
    Status fetch(const Tensor& logits);
    void sample(const std::vector<SampleJob>& jobs, const std::vector<RowMask>* masks);
    void score(const ScoreJob& job, SamplerWorkspace& workspace);
    void complete();

    DeepseekV41& model_;
    const CacheView& cache_;
    Options options_;
    CacheCopier copier_;
    const Clock& clock_;
    Sampler sampler_;
    DraftProposer proposer_;
    DraftVerifier verifier_;
    DeviceSampler device_sampler_;
    std::vector<SlotState> slots_;
    /// [slots] First position whose rows are in the drafts' windows, and all behind it. Steps that
    /// need no drafts leave the windows behind (StepPlan::draft_windows).
    std::vector<int32_t> draft_floor_;
    std::unordered_map<std::string, EncodedImage> encoded_;  ///< pictures by their key
    std::vector<EncodeItem> encoding_;                       ///< the batch under way
    HostLogits host_logits_;
    const float* logits_ = nullptr;  ///< [L, V] of the step being sampled

    // The step launched, its result not complete
    std::shared_ptr<const StepPlan> plan_;
    StepResult result_;
    std::vector<Proposal> proposals_;  ///< per chunk; trimmed to what is verified
    std::vector<SampleJob> free_jobs_, constrained_jobs_;
    std::vector<ScoreJob> score_jobs_;
    std::deque<StepResult> done_;
};

}  // namespace deepinfer
