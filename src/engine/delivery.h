// Delivery: from the scheduler's decisions to the callers' callbacks. Owns, per open request, the
// texts, counters and callbacks. The engine's thread only.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "engine/clock.h"
#include "engine/output_stream.h"
#include "engine/scheduler.h"

namespace deepinfer {

/// A checked request on its way to the engine's thread.
struct SubmittedRequest {
    uint64_t number = 0;
    std::string id;
    std::shared_ptr<const SamplingParams> sampling;
    int64_t prompt_tokens = 0;
    int64_t submit_us = 0;
    std::vector<SequenceSpec> specs;         ///< one per sub-sequence
    std::shared_ptr<SequenceImages> images;  ///< null: none; filled in by the time specs have them
    RequestCallbacks callbacks;
    std::vector<std::string> constraint_notes;

    void set_number(uint64_t n);
};

/// Draws the seed if none is given.
SubmittedRequest make_submitted(Request request, RequestCallbacks callbacks, const Clock& clock);

class Delivery final : public ScheduleSink {
  public:
    /// Both outlive it.
    Delivery(const Tokenizer& tokenizer, const Clock& clock)
        : tokenizer_(tokenizer), clock_(clock) {}

    /// A request that never reaches the scheduler (open() was called): all its parts end like this.
    void refuse(uint64_t request, FinishReason reason, const Status& error);
    /// Before the scheduler hears of the request. Takes the callbacks out of it.
    void open(SubmittedRequest& request);
    std::vector<uint64_t> open_requests() const;
    int64_t num_finished() const { return num_finished_; }

    FinishReason on_token(const Sequence& seq,
                          const SampledToken& sampled,
                          FinishReason reason) override;
    void on_prefill(const Sequence& seq, const ChunkResult& result) override;
    void on_ended(const Sequence& seq, FinishReason reason) override;
    void on_failed(const Sequence& seq, const Status& why) override;

  private:
    struct Part {
        std::unique_ptr<OutputStream> stream;
        bool nan_logits = false;
    };
    struct Open {
        std::string id;
        std::shared_ptr<const SamplingParams> sampling;
        RequestCallbacks callbacks;
        std::vector<Part> parts;
        std::vector<TokenLogprobs> prompt_logprobs;
        std::vector<std::string> constraint_notes;  ///< not yet told
        Usage usage;
        int64_t submit_us = 0;
        int64_t first_token_us = -1;
        size_t num_ended = 0;
    };

    void close(const Sequence& seq, FinishReason reason, Status error);
    Output make_output(const Open& open, const Sequence& seq) const;
    /// Closes the request with its last part. Returns what on_output said.
    bool emit(Open& open, Output output);

    const Tokenizer& tokenizer_;
    const Clock& clock_;
    std::map<uint64_t, Open> open_;
    int64_t num_finished_ = 0;
};

/// Adds a delta to the whole. choices has n entries.
void join_output(const Output& output, Completion* completion);

/// Joins the deltas of one request for a caller that waits. Outlives its maker while the engine
/// calls it.
class CompletionCollector {
  public:
    CompletionCollector(int n, RequestCallbacks inner);
    RequestCallbacks callbacks();
    /// True once the last Output is here.
    bool wait_for_ms(int64_t ms);
    Completion take();

  private:
    struct State {
        std::mutex mutex;
        std::condition_variable done;
        bool finished = false;
        Completion completion;
        RequestCallbacks inner;
    };
    std::shared_ptr<State> state_;
};

}  // namespace deepinfer
