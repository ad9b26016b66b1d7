// Engine: many requests, one loop, the same answer every time.
//
//   auto engine = Engine::create(config);
//   if (!engine.ok()) …
//   Request r;
//   r.prompt_token_ids = engine.value()->tokenizer().encode("The capital of France is");
//   auto done = engine.value()->generate(r, {.on_output = [](const Output& o) { print(o.text);
//   return true; }});
//
// With batch_invariant (the default) ids and log-probabilities of a request depend on its prompt,
// its sampling parameters, its seed and the checkpoint alone: not on requests beside it, chunk
// sizes, threads, preemption or a prefix found in the cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deepinfer/config.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"
#include "deepinfer/tokenizer.h"

namespace deepinfer {

/// How drafts fared (all zero without speculation). A round = one sequence's verification of drafts
/// in one step. Vectors are by position in the block.
struct SpecStats {
    int64_t rounds = 0;
    int64_t proposed = 0;  ///< drafts made
    int64_t verified = 0;  ///< of those, given rows of a step
    int64_t accepted = 0;  ///< of those, kept; verified − accepted rows were wasted
    int64_t bonus = 0;  ///< the model's own token of a round; a round ended by a stop id has none
    std::vector<int64_t> proposed_at, verified_at, accepted_at;
    std::vector<float> temperature, bias;  ///< calibration in use
    /// Of the estimated chance that drafts 0 … k all survive: expected calibration error (20 bins)
    /// before and after calibration, area under the ROC curve, Brier score.
    std::vector<double> ece_raw, ece, auroc, brier;
    double predicted_tokens = 0;  ///< what the estimates promised; compare accepted + rounds
    int64_t budget_steps = 0;     ///< steps whose number of drafts the cost model chose
    int64_t budget_drafts = 0;    ///< the sum of what it chose
    int64_t steps_with = 0, steps_without = 0;  ///< steps with decodes, with and without drafts
    int64_t switched_off = 0;  ///< times drafts were turned off because they did not pay
    int64_t draft_us = 0;      ///< time spent drafting (a part of step_us)
    /// Steps with decodes, with drafts and without: how many, their time without what prompt rows
    /// beside them took, the tokens and rows of the decodes.
    struct Timed {
        int64_t steps = 0, us = 0, tokens = 0, rows = 0;
    };
    Timed with, without;

    /// Tokens per round, the model's own included.
    double acceptance_length() const;
    double draft_tokens_per_proposal() const;
    /// Σ(accepted + 1) / Σ(verified + 1)
    double verify_rate() const;
    /// Share of the verified drafts at position k (0-based) that were accepted, all before
    /// included.
    double accept_rate(size_t k) const;
    /// The same among those whose predecessor was accepted.
    double conditional_acceptance(size_t k) const;
};

/// Counters since start, and the state now. Times are sums in microseconds.
struct EngineStats {
    int64_t running = 0;  ///< sequences that hold a slot
    int64_t waiting = 0;  ///< sequences in the queue, preempted ones included
    int64_t total_blocks = 0;
    int64_t free_blocks = 0;  ///< unused or cached without a user
    int64_t steps = 0;
    int64_t prefill_tokens = 0;  ///< rows of prompts (and of replays) computed
    int64_t decode_tokens = 0;   ///< rows of one-token steps computed
    int64_t output_tokens = 0;   ///< tokens delivered
    int64_t zombie_tokens = 0;   ///< tokens computed one step after their sequence had ended
    int64_t prefix_query_tokens = 0;
    int64_t prefix_hit_tokens = 0;
    int64_t replayed_tokens = 0;   ///< hit tokens computed again to rebuild windows
    int64_t skipped_rows = 0;      ///< prompt rows that truncation kept out of the decoder half
    int64_t uncut_prompts = 0;     ///< prompts that truncation passed over (log-probabilities)
    int64_t saved_windows = 0;     ///< window states stored at block ends (replay "stored")
    int64_t restored_windows = 0;  ///< prefix hits that took one instead of running again
    int64_t preemptions = 0;
    int64_t prepared_images = 0;   ///< decoded, resized and cut
    int64_t encoded_images = 0;    ///< went through the vision tower; the rest were found encoded
    int64_t image_crashes = 0;     ///< picture workers that died and were replaced
    int64_t image_bytes_held = 0;  ///< of EngineConfig::image_bytes
    int64_t finished_requests = 0;
    int64_t plan_us = 0;    ///< scheduler
    int64_t wait_us = 0;    ///< scheduler thread waiting for the executor
    int64_t commit_us = 0;  ///< results, text, callbacks
    int64_t step_us = 0;    ///< executor: forward and sampling
    int64_t sample_us = 0;  ///< of which sampling
    SpecStats spec;
};

/// Facts of the loaded checkpoint.
struct ModelInfo {
    int64_t vocab_size = 0;     ///< width of the logits
    int64_t num_token_ids = 0;  ///< the tokenizer's last id + 1; ids beyond are never generated
    int64_t num_hidden_layers = 0;
    int64_t max_position_embeddings = 0;
    int64_t sliding_window = 0;
    bool takes_images = false;  ///< the checkpoint has a vision tower and the backend runs it
    int32_t image_token_id = -1;
    int32_t bos_token_id = 0;
    int32_t eos_token_id = 1;
};

/// All functions may be called from any thread unless said otherwise.
class Engine {
  public:
    /// Loads the checkpoint, allocates every pool and starts the engine's thread. kInvalidArgument:
    /// configuration; kUnimplemented: a switch of a later version; kNotFound, kInvalidFile:
    /// checkpoint; kResourceExhausted: memory, with both numbers.
    static Result<std::unique_ptr<Engine>> create(const EngineConfig& config);

    /// Aborts what is left (every request still gets its last Output), then stops. Not from a
    /// callback.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// Checks the request and queues it; returns its number. Everything that can be known now is
    /// refused now: kInvalidArgument (parameters, ids), kOutOfRange (prompt + max_tokens against
    /// max_model_len, with both numbers; limits of pictures), kUnimplemented (so_args), kQueueFull,
    /// kUnavailable (stopping). Of pictures only the headers are read here: what decoding finds out
    /// ends the request with kError. The callbacks may run before submit() returns.
    Result<uint64_t> submit(Request request, RequestCallbacks callbacks);

    /// The prompt as the model reads it: every image token as often as its picture's span is long.
    /// Usage and limits count these ids. Reads the pictures' headers alone; refuses what submit()
    /// refuses of ids and pictures.
    Result<std::vector<int32_t>> expand_prompt(const Request& request) const;

    /// Ends a request: its unfinished sub-sequences get an Output with kAbort. Unknown or finished
    /// numbers are ignored.
    void abort(uint64_t request);

    /// Submits and waits. The callbacks still run on the engine's thread. `cancel` (looked at about
    /// 50 times a second, safe to set in a signal handler) aborts: what was produced is returned
    /// with kAbort. Not from a callback.
    Result<Completion> generate(Request request,
                                RequestCallbacks callbacks = {},
                                const std::atomic<bool>* cancel = nullptr);

    /// Returns when no request is left. Not from a callback.
    void wait_idle();

    /// Forgets every cached prefix between two steps; requests that run keep their own blocks.
    /// Returns the number of blocks that only the cache held. kUnavailable: the engine is stopping.
    /// Waits for the step that runs. Not from a callback.
    Result<int64_t> flush_prefix_cache();

    /// Whether submit() finds this constraint compiled (or refused) already; otherwise it takes up
    /// to 5 s of processor time on the caller's thread, and waits its turn for that.
    bool constraint_is_ready(const StructuredOutputArgs& args) const;

    const Tokenizer& tokenizer() const;
    /// The configuration with every default resolved.
    const EngineConfig& config() const;
    const ModelInfo& model_info() const;
    EngineStats stats() const;
    /// Some lines for people: model, backend and its kernels, limits, pools. Printed once at start.
    std::string description() const;

  private:
    struct Impl;
    explicit Engine(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
