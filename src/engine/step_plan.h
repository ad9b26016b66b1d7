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

namespace deepinfer {

/// Input id of a row whose token is sampled by the step before: the executor takes the slot's last
/// one.
inline constexpr int32_t kLastSampled = -1;

/// A slot starts to serve a sequence, anew (epoch): the executor forgets what the slot held before.
struct SlotStart {
    int32_t slot = 0;
    uint32_t epoch = 0;
    uint64_t request = 0;
    int32_t index = 0;  ///< sub-sequence, enters the random numbers
    int64_t prompt_len = 0;
    std::vector<int32_t> tokens;  ///< everything known: the prompt, after a preemption outputs too
    uint64_t seed = 0;
    std::shared_ptr<const SamplingParams> sampling;

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

/// The rows of one sequence in this step.
struct ChunkPlan {
    int32_t slot = 0;
    uint32_t epoch = 0;
    int32_t start_pos = 0;
    int32_t window_floor = 0;  ///< first position of a replay: window reads stay at or above it
    int32_t write_from = 0;    ///< global rows below are a prefix hit's: never rewritten
    std::vector<int32_t> token_ids;  ///< one per row; the last may be kLastSampled
    std::vector<int32_t> lookback;   ///< up to three ids before start_pos, oldest first
    std::vector<int32_t> block_ids;  ///< blocks of positions [0, start_pos + rows)
    bool decode = false;             ///< one row that continues an output (statistics)
    bool sample = false;             ///< the last row yields the next token
    bool constrained = false;        ///< sampled in the second launch, under a mask
    bool prompt_logprobs =
        false;  ///< every row but a sampled one yields the logprob of its successor

    int32_t num_rows() const { return static_cast<int32_t>(token_ids.size()); }
    bool operator==(const ChunkPlan&) const = default;
};

struct StepPlan {
    uint64_t step = 0;
    std::vector<SlotStart> starts;
    std::vector<SlotFork> forks;
    std::vector<ChunkPlan> chunks;  ///< in row order

    // For logs
    int64_t num_prefill_rows = 0, num_decode_rows = 0, num_replay_rows = 0;
    int32_t num_admitted = 0, num_preempted = 0, num_constrained = 0;

    int64_t num_rows() const { return num_prefill_rows + num_decode_rows; }
    /// Nothing to launch. (Starts and forks alone do need a launch.)
    bool empty() const { return chunks.empty() && starts.empty() && forks.empty(); }
    bool operator==(const StepPlan&) const = default;

    /// One line of JSON; tokens and blocks included, so a step can be understood from its log.
    std::string to_json() const;
};

/// Mask of a constrained row: bit v%32 of word v/32, 1 = allowed. Absent for a sequence that ended
/// meanwhile: its row is not sampled.
struct RowMask {
    int32_t slot = 0;
    uint32_t epoch = 0;
    std::vector<uint32_t> words;
};

/// What a chunk gave.
struct ChunkResult {
    int32_t slot = 0;
    uint32_t epoch = 0;
    int32_t token = -1;  ///< −1: nothing was sampled
    bool sampled = false;
    bool empty_mask = false;  ///< no token was allowed
    bool nan_logits = false;
    TokenLogprobs logprobs;  ///< if asked
    std::vector<TokenLogprobs>
        prompt_logprobs;  ///< of positions start_pos + 1 …, if the plan said so
};

struct StepResult {
    uint64_t step = 0;
    std::vector<ChunkResult> chunks;  ///< one per chunk of the plan, in its order
    int64_t step_us = 0, sample_us = 0;
};

}  // namespace deepinfer
