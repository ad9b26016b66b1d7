// StepPlan: what one step does, as plain data. It can be printed, compared, kept and replayed.
//
// The scheduler writes it, a StepExecutor carries it out. Between steps the executor keeps, per
// slot, what earlier plans told it (tokens, sampler state, window rings), so a plan is only the
// difference. Replaying a list of plans on a fresh executor gives the same results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/request.h"
#include "deepinfer/sampling_params.h"
#include "engine/draft_scale.h"

namespace deepinfer {

/// Input id of a row whose token is sampled by the step before: the executor takes the slot's last
/// one.
inline constexpr int32_t kLastSampled = -1;
/// StepPlan::draft_budget: every draft that the chunks ask for is verified.
inline constexpr int64_t kAllDrafts = -1;

class SequenceImages;
struct PreparedImage;

/// A picture to encode, under the name that its rows are kept by.
struct EncodeItem {
    std::string key;
    std::shared_ptr<const PreparedImage> picture;

    bool operator==(const EncodeItem&) const = default;
};

/// The step's work on pictures, carried out before its rows.
struct EncodePlan {
    std::vector<std::string> drop;  ///< encoded pictures that are forgotten, first of all
    std::vector<EncodeItem> begin;  ///< a new batch; empty: the one under way goes on
    int stages = 0;                 ///< of model/vision_encoder.h, to run now
    bool finish = false;            ///< the batch is complete after them: its rows are kept

    bool empty() const { return stages == 0 && drop.empty(); }
    bool operator==(const EncodePlan&) const = default;
};

/// A slot starts to serve a sequence, anew (epoch): the executor forgets what the slot held before.
struct SlotStart {
    int32_t slot = 0;
    uint32_t epoch = 0;
    uint64_t request = 0;
    int32_t index = 0;  ///< sub-sequence, enters the random numbers
    int64_t prompt_len = 0;
    int64_t max_total = 0;        ///< tokens it may have in all: the executor never samples beyond
    std::vector<int32_t> tokens;  ///< everything known: the prompt, after a preemption outputs too
    uint64_t seed = 0;
    std::shared_ptr<const SamplingParams> sampling;
    std::shared_ptr<const SequenceImages> images;  ///< null: none

    bool operator==(const SlotStart& o) const;
};

/// Copies a slot's window rings and compressor tails, and the blocks that could not be shared, so
/// that a second sequence can go on from there (n > 1 shares one prompt). Carried out before the
/// rows.
struct SlotFork {
    int32_t from_slot = 0, to_slot = 0;
    std::vector<std::pair<int32_t, int32_t>> blocks;  ///< (from, to), in order of position

    bool operator==(const SlotFork&) const = default;
};

/// Copies a slot's window rings and compressor tails: to where windows are stored, or back.
struct WindowCopy {
    int32_t from_slot = 0, to_slot = 0;

    bool operator==(const WindowCopy&) const = default;
};

/// The rows of one sequence in this step.
///
/// A decode may also verify drafts: up to num_drafts rows behind its one certain row. How many
/// drafts the step before it accepted is not known when it is planned, so start_pos is then the
/// least it can be and block_ids cover the most; the executor, which knows, starts at the slot's
/// newest token and says where that was (ChunkResult::start_pos). If that step completed the
/// sequence (max_total, a stop id) the chunk has no rows at all.
struct ChunkPlan {
    int32_t slot = 0;
    uint32_t epoch = 0;
    int32_t start_pos = 0;
    int32_t num_drafts = 0;    ///< drafts to verify at most
    int32_t window_floor = 0;  ///< first position of a replay: window reads stay at or above it
    int32_t write_from = 0;    ///< global rows below are a prefix hit's: never rewritten
    int32_t truncate_at = 0;   ///< prompt length that truncation goes by; 0 = no row skips a layer
    std::vector<int32_t> token_ids;  ///< one per row; the last may be kLastSampled
    std::vector<int32_t> lookback;  ///< up to three ids before start_pos, oldest first; of a decode
                                    ///< with an uncertain start: empty, the executor knows them
    std::vector<int32_t> block_ids;  ///< blocks of positions [0, start_pos + rows), or beyond
    bool decode = false;             ///< one row that continues an output (statistics)
    bool sample = false;             ///< the last row yields the next token
    bool constrained = false;        ///< sampled in the second launch, under a mask
    bool prompt_logprobs =
        false;  ///< every row but a sampled one yields the logprob of its successor

    /// Rows without drafts.
    int32_t num_rows() const { return static_cast<int32_t>(token_ids.size()); }
    /// Drafts are in flight: start_pos is the least.
    bool uncertain_start = false;
    bool operator==(const ChunkPlan&) const = default;
};

struct StepPlan {
    uint64_t step = 0;
    std::vector<SlotStart> starts;
    std::vector<WindowCopy> saves;     ///< first of all: state as the step before left it
    std::vector<WindowCopy> restores;  ///< after the saves, before forks and rows
    EncodePlan encode;
    std::vector<SlotFork> forks;
    std::vector<ChunkPlan> chunks;  ///< in row order
    /// Drafts verified in this step at most: those that likeliest survive (draft_budget.h), by the
    /// confidences that only the executor knows. kAllDrafts: what the chunks say.
    int64_t draft_budget = kAllDrafts;
    int32_t draft_block = 0;               ///< tokens drafted per sequence at most; 0 = nextn
    bool draft_windows = true;             ///< the rows go into the draft stages' windows
    float least_survival = 0;              ///< drafts that survive with less are not verified
    std::vector<DraftScale> draft_scales;  ///< [nextn] calibration of the confidences

    // For logs
    int64_t num_prefill_rows = 0, num_decode_rows = 0, num_replay_rows = 0;
    int64_t num_draft_rows = 0;     ///< at most
    int64_t num_skipped_rows = 0;   ///< prefill rows that stay below the decoder half
    int32_t num_uncut_prompts = 0;  ///< admitted prompts that truncation passes over
    int32_t num_admitted = 0, num_preempted = 0, num_constrained = 0;

    /// At most: drafts may turn out fewer.
    int64_t num_rows() const { return num_prefill_rows + num_decode_rows + num_draft_rows; }
    bool has_drafts() const { return num_draft_rows > 0; }
    /// Nothing to launch. (Starts and forks alone do need a launch.)
    bool empty() const {
        return chunks.empty() && starts.empty() && forks.empty() && saves.empty() && encode.empty();
    }
    bool operator==(const StepPlan&) const = default;

    /// One line of JSON; tokens and blocks included, so a step can be understood from its log.
    std::string to_json() const;
};

/// Masks of a constrained chunk's sampled rows: bit v%32 of word v/32, 1 = allowed. Row 0 is that
/// of the certain row, row j supposes that drafts 1 to j were accepted; they end before a draft
/// that the form refuses, since nothing behind it can be. Absent for a sequence that ended
/// meanwhile: its rows are not sampled.
struct RowMask {
    int32_t slot = 0;
    uint32_t epoch = 0;
    std::vector<std::vector<uint32_t>> rows;
};

/// The drafts that a launched step verifies for a constrained chunk: what its masks must suppose.
struct ChunkDrafts {
    int32_t slot = 0;
    uint32_t epoch = 0;
    std::vector<int32_t> tokens;
};

/// One token of a step's result.
struct SampledToken {
    int32_t id = -1;
    bool nan_logits = false;
    TokenLogprobs logprobs;  ///< if asked
};

/// What became of a chunk's drafts.
struct DraftOutcome {
    int32_t num_proposed = 0;       ///< drafts made
    int32_t num_verified = 0;       ///< of those, given rows
    int32_t num_accepted = 0;       ///< of those, accepted (before a stop id at most)
    std::vector<float> confidence;  ///< [num_proposed] raw logits
    bool bonus = false;  ///< the last token is not a draft: correction, or behind all drafts
};

/// What a chunk gave.
struct ChunkResult {
    int32_t slot = 0;
    uint32_t epoch = 0;
    int32_t start_pos = 0;  ///< where its rows began
    int32_t num_rows = 0;   ///< run, drafts included
    /// In order: accepted drafts, then one token of the model's own. Empty: nothing was sampled.
    std::vector<SampledToken> tokens;
    bool empty_mask = false;  ///< behind the tokens no other was allowed
    DraftOutcome drafts;
    std::vector<TokenLogprobs>
        prompt_logprobs;  ///< of positions start_pos + 1 …, if the plan said so
};

struct StepResult {
    uint64_t step = 0;
    /// Not ok: the device failed; nothing below means anything, and no later step will do better.
    Status status;
    std::vector<ChunkResult> chunks;  ///< one per chunk of the plan, in its order
    int64_t step_us = 0, sample_us = 0, draft_us = 0;
};

}  // namespace deepinfer
