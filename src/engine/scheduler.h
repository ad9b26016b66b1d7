// Scheduler: which rows run in the next step, and what their results mean.
//
// Owns every sequence from submission to its last token. Knows tokens, blocks and slots; knows no
// model, no text, no threads. Two calls alternate, on one thread:
//
//   plan_step()      decodes first, then running prompts, then admissions, within the token budget
//   finish_step()    appends tokens, ends sequences, makes blocks findable
//
// plan_step() may be called once more before the step before is finished (the asynchronous loop):
// it plans from upper bounds, a token in flight is kLastSampled. A sequence that turns out to have
// ended has a row too many in that step (a zombie); its result is dropped by comparing epochs. The
// parts of plan_step stand in actions/: decode, prefill, admit, fork, preempt.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "engine/block_space.h"
#include "engine/clock.h"
#include "engine/encoder_planner.h"
#include "engine/fairness.h"
#include "engine/mask_filler.h"
#include "engine/sequence.h"
#include "engine/spec_planner.h"
#include "engine/step_plan.h"
#include "engine/waiting_queue.h"
#include "kvcache/replay.h"
#include "model/prefill_truncation.h"

namespace deepinfer {

struct SchedulerConfig {
    int64_t max_num_seqs = 64;
    int64_t max_num_batched_tokens = 512;
    int64_t max_model_len = 0;
    int64_t max_logit_rows = 64;  ///< >= max_num_seqs
    int64_t long_prefill_token_threshold = 0;
    int64_t age_us = 30'000'000;
    int32_t eos_token_id = -1;
    bool prefix_caching = true;
    ReplayKind replay = ReplayKind::kExact;  ///< after a prefix hit (kvcache/replay.h)
    ReplayGeometry replay_geometry;
    PrefillTruncation truncation;
    bool store_windows = false;  ///< save and restore window state at block ends
    int ring_extra = 2;          ///< rows that rings hold beyond the window
    int chunk_align = 1;  ///< lcm of the compression ratios: whole groups where it costs nothing
    int lookback = 3;     ///< ids before a chunk that Engram reads
    int nextn = 0;        ///< drafts that a decode verifies at most
    SpecPlanner* spec =
        nullptr;  ///< how many each step; null: always nextn. Outlives the scheduler
    EncoderPlanner::Options encoder;
    MaskBudget masks;
    /// Tests: sequences that decode and for which this says true are preempted before the step is
    /// planned.
    std::function<bool(uint64_t step, const Sequence&)> force_preempt;
    /// Tests: steps for which this says true verify no drafts and leave the drafts' windows behind.
    std::function<bool(uint64_t step)> force_no_drafts;
};

/// Counters of the scheduler; the engine adds its own.
struct SchedulerStats {
    int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, output_tokens = 0, zombie_tokens = 0;
    int64_t prefix_query_tokens = 0, prefix_hit_tokens = 0, replayed_tokens = 0, preemptions = 0;
    int64_t late_masks = 0;      ///< rows postponed since their mask was not ready
    int64_t draft_rows = 0;      ///< rows of drafts computed
    int64_t encoded_images = 0;  ///< pictures that went through the tower
    int64_t skipped_rows = 0, uncut_prompts = 0;
    int64_t saved_windows = 0, restored_windows = 0;
};

/// Hears what finish_step and abort decided. Calls come from inside those functions and must not
/// call the scheduler.
class ScheduleSink {
  public:
    virtual ~ScheduleSink() = default;
    /// A token was appended (it is seq.tokens.back()). `reason` says whether it ends the sequence
    /// by id or length; the sink may end it by text: what it returns counts. Tokens that the step
    /// gave behind the last one are dropped.
    virtual FinishReason on_token(const Sequence& seq,
                                  const SampledToken& token,
                                  FinishReason reason) = 0;
    /// Prompt rows were committed. Comes before on_token of the same step.
    virtual void on_prefill(const Sequence& seq, const ChunkResult& result) = 0;
    /// The sequence has ended otherwise than by a token: abort or empty mask.
    virtual void on_ended(const Sequence& seq, FinishReason reason) = 0;
    /// It ended because the device failed (kError); `why` says how.
    virtual void on_failed(const Sequence& seq, const Status& why) {
        (void)why;
        on_ended(seq, FinishReason::kError);
    }
};

class Scheduler {
  public:
    /// `blocks` and `clock` outlive it.
    Scheduler(SchedulerConfig config, BlockSpace& blocks, const Clock& clock);
    ~Scheduler();

    /// kOutOfRange with both numbers when it could never run: prompt + max_tokens against
    /// max_model_len, or against the whole pool. Reads the configuration alone: any thread.
    Status check_fits(int64_t prompt_len, const SamplingParams& sampling) const;

    /// Queues the n sub-sequences of a request that check_fits accepted (one spec per index, equal
    /// prompts). The first computes the prompt, the others go on from it.
    void add(std::vector<SequenceSpec> specs);

    /// Ends all sub-sequences of a request now; the sink hears of each. Unknown requests are
    /// ignored.
    void abort(uint64_t request, ScheduleSink& sink);

    /// The next step. May be empty: nothing to run, or all that runs waits for results in flight;
    /// then it needs no launch.
    std::shared_ptr<const StepPlan> plan_step();
    /// Results of the oldest planned, unfinished, not empty step.
    void finish_step(const StepResult& result, ScheduleSink& sink);
    /// Masks for the constrained rows of the newest plan, once the step before it is finished.
    /// `drafts`: what that plan verifies for them (StepExecutor::drafts). A row whose mask is late
    /// gets none: its sequence is preempted and comes back when the mask is there.
    std::vector<RowMask> fill_masks(const StepPlan& plan, const std::vector<ChunkDrafts>& drafts);

    bool has_unfinished() const { return !sequences_.empty(); }
    int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
    int64_t num_waiting() const {
        return queue_.size() + static_cast<int64_t>(late_.size()) + num_siblings_;
    }
    int64_t steps_in_flight() const { return static_cast<int64_t>(in_flight_.size()); }
    const SchedulerStats& stats() const { return stats_; }
    const SchedulerConfig& config() const { return config_; }
    /// Service of a tenant so far, in weighted tokens.
    int64_t tenant_service(const std::string& tenant) const { return tenants_.value(tenant); }

    /// DI_CHECKs everything that must hold between calls. Linear in the number of sequences.
    void check_invariants() const;

  private:
    /// What is left of the step being planned.
    struct Budget {
        int64_t rows = 0;
        int64_t logit_rows = 0;
    };

    // actions/
    void plan_encodes(StepPlan& plan);
    /// Rows that may run before the next picture that is not encoded yet.
    int64_t rows_before_picture(const Sequence& seq) const;
    void plan_decodes(StepPlan& plan, Budget& budget);
    void plan_prefills(StepPlan& plan, Budget& budget);
    void plan_admissions(StepPlan& plan, Budget& budget);
    void fork_siblings(Sequence& leader, StepPlan& plan);
    void release_siblings(Sequence& leader);
    bool make_room(Sequence& seq, int64_t num_tokens, StepPlan& plan);
    void preempt(Sequence& seq, StepPlan& plan);
    void preempt_forced(StepPlan& plan);
    void postpone(Sequence& seq);
    void take_back_late();
    void give_up_slot(Sequence& seq);

    /// ChunkPlan::truncate_at for a run of the tokens that seq has now.
    int64_t truncation_point(const Sequence& seq) const;
    /// Where it may resume after a hit of that many tokens; empty: nowhere.
    std::optional<ReplayPlan> replay_after(const Sequence& seq, int64_t hit) const;
    /// Where a sequence resumes after a prefix hit, and with which stored windows.
    struct Resume {
        int64_t start = 0, hit = 0;
        StoredWindow window;  ///< slot −1: none
    };
    Resume resume_after(const Sequence& seq, int64_t cached) const;
    void plan_saves(StepPlan& plan);
    int64_t save_position(const Sequence& seq) const;
    void begin_windows(Sequence& seq, const Resume& resume, int64_t cached) const;
    bool admit(Sequence& seq, StepPlan& plan, Budget& budget);
    int64_t estimate_blocks(const Sequence& seq) const;
    int64_t blocks_of(int64_t num_tokens) const;
    /// Rows the next chunk of seq may have; 0 when the budget does not allow one.
    int64_t chunk_rows(const Sequence& seq, const Budget& budget) const;
    /// Writes the chunk [scheduled, scheduled + rows); its blocks exist already.
    void add_chunk(Sequence& seq, int64_t rows, StepPlan& plan, Budget& budget, int drafts = 0);
    /// Drafts that the next decode of seq could use: its newest token and the last one need none.
    int64_t useful_drafts(const Sequence& seq) const;
    /// Positions that a chunk's rows may reach, whatever the steps in flight accept.
    int64_t most_end(const Sequence& seq, int64_t rows, int64_t drafts) const;
    /// Rows that drafts may take beside the certain rows of this many decodes.
    int64_t spare_for_drafts(int64_t decodes, const Budget& budget) const;
    /// Asks the planner; returns the rows that drafts may take in this step.
    int64_t plan_drafts(const std::vector<Sequence*>& ready,
                        int64_t decodes,
                        const Budget& budget,
                        StepPlan& plan) const;
    void start_slot(Sequence& seq, StepPlan& plan);
    bool schedulable(const Sequence& seq) const;

    void free_slot(Sequence& seq);
    /// Takes over a chunk's tokens until one ends the sequence.
    FinishReason append_tokens(Sequence& seq,
                               const ChunkPlan& plan,
                               const ChunkResult& result,
                               ScheduleSink& sink);
    void end(Sequence& seq);
    void forget_finished(uint64_t request);
    FinishReason reason_of_token(const Sequence& seq, int32_t token) const;
    Sequence* owner(int32_t slot, uint32_t epoch) const;

    SchedulerConfig config_;
    BlockSpace& blocks_;
    const Clock& clock_;
    WaitingQueue queue_;
    TenantCounters tenants_;
    EncoderPlanner encoder_;
    std::unordered_map<uint64_t, std::vector<std::unique_ptr<Sequence>>> sequences_;
    std::vector<Sequence*> late_;        ///< wait for their masks alone, without slot and blocks
    std::vector<Sequence*> running_;     ///< by (priority, arrival, index)
    std::vector<Sequence*> slot_owner_;  ///< [max_num_seqs]
    std::vector<uint32_t> slot_epoch_;   ///< [max_num_seqs]
    std::set<int32_t> free_slots_;       ///< lowest first: rings that were never touched stay so
    std::deque<std::shared_ptr<const StepPlan>> in_flight_;
    int64_t num_siblings_ = 0;
    uint64_t next_arrival_ = 0;
    uint64_t next_step_ = 1;
    double reserve_ratio_ = 0.7;  ///< share of the expected output that admission reserves
    double mean_output_ = 256;    ///< moving mean of finished outputs
    SchedulerStats stats_;
    MaskFiller mask_filler_;
};

}  // namespace deepinfer
