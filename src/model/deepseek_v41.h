// DeepseekV41: the model. Weights on a backend, and one forward() for prefill, decode and
// verification.
//
// Sees caches as a CacheView (ops/cache/cache_view.h) and a step as a Batch (model/batch.h); knows
// nothing of requests, blocks' owners or scheduling. Start reading at deepseek_v41.cpp, forward().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "deepinfer/status.h"
#include "model/batch.h"
#include "model/dspark.h"
#include "model/prefill_truncation.h"
#include "ops/backend.h"
#include "ops/cache/cache_view.h"

namespace deepinfer {

/// Sizes fixed at load time; the activation arena is allocated for them.
struct ModelLimits {
    int64_t max_rows = 512;       ///< rows of one step
    int64_t max_seqs = 64;        ///< sequences of one step
    int64_t max_logit_rows = 64;  ///< rows of one step whose logits are wanted
    int64_t max_positions = 0;    ///< longest sequence; 0 = config.max_position_embeddings
    int block_tokens = 64;
    int ring_extra = 12;  ///< ring slots beyond the window: 2·(1 + drafts that may be rolled back)
    /// Sequences of one draft(). 0 = drafting off: mtp.* is not loaded, the stages have no rings
    /// and a step does nothing for them.
    int64_t max_draft_seqs = 0;
    /// How prompts are cut (SequenceChunk::prompt_tokens); load() fills in the geometry.
    PrefillTruncation truncation;
    /// Steps of at most so many rows are recorded and replayed where the device can (0 = never).
    int64_t max_graph_rows = 512;
};

/// Watches intermediates and replaces choices; for judges and tests. All pointers are device memory
/// and valid during the call only. Any member may be empty.
struct ForwardHooks {
    /// name as in the golden files without layer prefix ("attn_pre", "q", "moe_out", …); layer -1 =
    /// global. `first_row` is the batch row of value[0] (index scores come in row tiles).
    std::function<void(const char* name, int layer, int64_t first_row, const Tensor& value)>
        observe;
    /// Called after the op that chose; may overwrite the choice (i32 tensors of the op's contract):
    /// "expert_ids" [T, k], "candidate_blocks" [rows, C], "topk" [rows, K].
    std::function<void(const char* name, int layer, int64_t first_row, Tensor choice)> replace;
};

class DeepseekV41 {
  public:
    /// Binds and uploads all weights. The checkpoint must outlive the model (weights stay mapped on
    /// a host backend). `token_map`: raw id → compressed id of the tokenizer (Engram), vocab_size
    /// entries. With max_draft_seqs > 0: kInvalidArgument if the checkpoint has no draft stages,
    /// kUnimplemented if the backend has no drafting ops (OpTable::runs_drafts).
    static Result<std::unique_ptr<DeepseekV41>> load(const Checkpoint& checkpoint,
                                                     Backend& backend,
                                                     std::vector<int32_t> token_map,
                                                     const ModelLimits& limits);
    ~DeepseekV41();

    const ModelConfig& config() const;
    const ModelLimits& limits() const;
    const CacheGeometry& cache_geometry() const;
    Backend& backend();
    /// Off: every step runs op by op, for measurements and judges.
    void use_graphs(bool on);

    /// The rows that each layer of this model takes of a prompt.
    static PrefillTruncation truncation_of(const ModelConfig& config,
                                           TruncationMode mode,
                                           int64_t keep);

    /// Runs one step and updates the caches. Returns logits [L, V] (accumulator type, device
    /// memory, valid until the next forward) for batch.logit_rows. Sizes beyond the limits are our
    /// bug (DI_CHECK). Work is queued on backend().device().stream(); host backends have finished
    /// on return.
    Tensor forward(const Batch& batch, const CacheView& cache, const ForwardHooks* hooks = nullptr);

    /// Proposes the tokens after each sequence's anchor (model/dspark.h) from what forward() has
    /// stored in the stages' rings; changes no cache. Greedy unless `choose` is given. A sequence's
    /// drafts never depend on the others of the batch. Needs max_draft_seqs > 0; the logits of the
    /// latest forward stay valid. Rows that forward() ran and the engine took back need no
    /// clean-up: ring_extra keeps them from hiding rows of the window, and the next forward
    /// overwrites them.
    DraftResult draft(const DraftBatch& batch,
                      const CacheView& cache,
                      const DraftChooser& choose = {});

  private:
    struct Impl;
    explicit DeepseekV41(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
