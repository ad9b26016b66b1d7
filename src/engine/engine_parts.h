// EngineParts: everything an engine is made of, loaded and sized from an EngineConfig.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "deepinfer/config.h"
#include "deepinfer/engine.h"
#include "deepinfer/tokenizer.h"
#include "engine/block_space.h"
#include "engine/clock.h"
#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "engine/step_executor.h"
#include "kvcache/cache_memory.h"
#include "model/deepseek_v41.h"
#include "model/vision_encoder.h"
#include "ops/backend.h"
#include "vision/multimodal_processor.h"

namespace deepinfer {

/// Doors for tests: interventions that no configuration offers.
struct EngineHooks {
    std::function<bool(uint64_t step, const Sequence&)> force_preempt;  ///< see SchedulerConfig
    std::function<bool(uint64_t step)> force_no_drafts;                 ///< likewise
    DraftOverride drafts;  ///< sees and changes what is proposed for a sequence
};

/// Members in order of dependence: destroyed last to first.
struct EngineParts {
    EngineConfig config;  ///< resolved
    ModelInfo info;
    int32_t image_token_id = -1;
    SteadyClock clock;
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<Checkpoint> checkpoint;
    std::unique_ptr<Backend> backend;
    /// Null without pictures. Forked before the weights are mapped.
    std::unique_ptr<MultimodalProcessor> processor;
    VisionConfig vision;  ///< the checkpoint's, with EngineConfig::max_image_tokens
    std::unique_ptr<DeepseekV41> model;
    std::unique_ptr<VisionEncoder> encoder;  ///< null without pictures
    std::unique_ptr<CacheMemory> cache;
    std::unique_ptr<BlockSpace> blocks;
    std::unique_ptr<SpecPlanner> spec;  ///< with nextn > 0
    std::unique_ptr<Scheduler> scheduler;
    std::unique_ptr<ModelRunner> runner;
    std::unique_ptr<StepExecutor> threaded;  ///< with async_scheduling
    StepExecutor* executor = nullptr;        ///< runner or threaded

    static Result<std::unique_ptr<EngineParts>> load(const EngineConfig& config,
                                                     const EngineHooks& hooks = {});
    std::string description() const;
    /// Writes the calibration file, if one is configured and anything was learnt.
    Status save_calibration() const;

  private:
    Status make_spec_planner();
    std::string model_id() const;
};

/// Fills in truncation, keep_tokens and replay, and checks keep_tokens against window and block.
Status resolve_replay(const ModelConfig& model, EngineConfig* config);

/// Sizes of the pools for a model, before anything is allocated.
struct PoolSizes {
    int64_t num_blocks = 0;
    int64_t block_bytes = 0;
};
/// Fills the defaults of `config` (max_model_len, kv_cache_bytes, max_logit_rows, nextn) and checks
/// what depends on the checkpoint. `can_draft`: the backend has the ops. kInvalidArgument names the
/// option and both numbers.
Result<PoolSizes> resolve_limits(const ModelConfig& model, bool can_draft, EngineConfig* config);

}  // namespace deepinfer
