// Sequence: one sub-sequence of a request inside the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "engine/block_space.h"
#include "engine/mask_filler.h"
#include "engine/sequence_images.h"
#include "sampler/token_constraint.h"

namespace deepinfer {

/// What the scheduler needs to know of a new sequence.
struct SequenceSpec {
    uint64_t request = 0;
    int32_t index = 0;
    std::vector<int32_t> prompt;
    std::shared_ptr<const SamplingParams> sampling;
    uint64_t seed = 0;
    int priority = 0;
    std::string tenant;
    std::string cache_salt;
    std::shared_ptr<const SequenceImages> images;  ///< null: none
    std::shared_ptr<TokenConstraint> constraint;   ///< null: none
};

enum class SequenceState {
    kWaiting,  ///< in the queue, new or preempted
    kSibling,  ///< waits for sub-sequence 0 to compute the shared prompt
    kRunning,  ///< holds a slot
    kFinished,
};

/// Owned by the scheduler, touched by its thread only.
///
/// Positions: [0, computed) are committed, [computed, scheduled) are in launched steps. tokens
/// holds the committed ids; with a sample in flight at least one more exists that only the executor
/// knows yet, and with drafts in flight perhaps some more. scheduled and total() count the least
/// that can be. Always: computed <= scheduled <= total(), and computed <= tokens.size().
struct Sequence {
    SequenceSpec spec;
    SequenceState state = SequenceState::kWaiting;
    std::vector<int32_t> tokens;  ///< prompt, then committed outputs
    int64_t prompt_len = 0;
    int64_t max_total = 0;  ///< prompt + max_tokens, at most max_model_len
    uint64_t arrival = 0;   ///< order of submission
    int64_t arrival_us = 0;
    int64_t first_scheduled_us = -1;
    int64_t cached_tokens = -1;  ///< prefix hit of the first admission; −1 before it

    int32_t slot = -1;
    uint32_t epoch = 0;
    SequenceBlocks blocks;
    int64_t scheduled = 0;
    int64_t computed = 0;
    int32_t samples_in_flight = 0;
    int32_t drafts_in_flight = 0;
    int64_t window_floor = 0;
    int64_t write_from = 0;
    int64_t truncate_at = 0;  ///< ChunkPlan::truncate_at of this run
    /// Of this run (actions/store_windows.cpp): positions of its prompt where windows are to be
    /// stored, the last one stored, and from where on they are worth it.
    std::vector<int64_t> save_points;
    int64_t saved_at = 0;
    int64_t run_length = 0;          ///< tokens known at admission: what comes behind is decoded
    int64_t windows_from = 0;        ///< layers up to the last kv source have a cold run's windows
    int64_t complete_from = 0;       ///< all layers have
    uint64_t last_step = 0;          ///< when a row of it was last planned
    bool waited_for_prefix = false;  ///< once per sequence
    int64_t charged = 0;             ///< positions already charged to the tenant

    /// Of its newest constrained row; with rows only while it waits for them.
    std::shared_ptr<MaskJob> masks;

    std::vector<Sequence*> siblings;  ///< of sub-sequence 0: those that wait for its prompt
    Sequence* leader = nullptr;       ///< of a waiting sibling

    /// Length including the token in flight, if no draft is accepted.
    int64_t total() const { return static_cast<int64_t>(tokens.size()) + samples_in_flight; }
    /// Rows that could be planned now.
    int64_t remaining() const { return total() - scheduled; }
    /// The length if every draft in flight is accepted.
    int64_t most_total() const { return total() + drafts_in_flight; }
    /// All tokens it may have exist or are in flight: nothing is left to plan. Every step in flight
    /// yields one token at least; if accepted drafts complete it sooner, the executor drops the
    /// rows.
    bool length_reached() const { return total() >= max_total; }
    int64_t num_output() const { return static_cast<int64_t>(tokens.size()) - prompt_len; }
};

}  // namespace deepinfer
