// Batch files: JSON Lines of requests in, JSON Lines of answers out, resumable.
//
//   BatchOptions options;
//   options.render = …;                    // only for lines with "messages"
//   auto summary = run_batch(engine, "in.jsonl", "out.jsonl", options);
//
// In, one line a request; unknown keys are errors of that line alone:
//   {"id":"a1","messages":[…],"tools":[…],"thinking":…,"reasoning_effort":…,"sampling":{…}}
//   {"id":"a2","prompt":"raw text","sampling":{…}}          BOS is put in front unless it is there
//   {"id":"a3","prompt_token_ids":[0,17,5],"sampling":{…}}  taken as they are
// A line without an id, or one that is no JSON, is answered under "line-<number>".
//
// Out, in order of completion:
//   {"id","outputs":[{"text","reasoning","token_ids","logprobs","logprobs_hex","finish_reason"}],
//    "usage":{"prompt_tokens","cached_tokens","completion_tokens"},"error":null}
// logprobs (and top_logprobs, [[id, value], …] per token, when more than the chosen one was asked
// for) stand there if sampling.logprobs was given; logprobs_hex are their exact bits. What a
// constraint with "strict":false left out is listed as "constraint_notes":["…"]. A line that
// failed has "outputs":[] and "error":{"code","message","param"}.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

/// What a model's text means: reasoning, answer, calls.
struct ParsedOutput {
    std::string text;
    std::string reasoning;
    std::string extra_json;     ///< more members for the output object, `"tool_calls":[…]`; or ""
    std::string finish_reason;  ///< replaces the engine's; or ""
};

/// Reads one sub-sequence's text as it comes. Used by one thread at a time.
class OutputParser {
  public:
    virtual ~OutputParser() = default;
    /// False: the answer is complete (a stop string of its own), generation ends here.
    virtual bool feed(const std::string& text) = 0;
    virtual ParsedOutput finish(FinishReason reason) = 0;
};

struct RenderedPrompt {
    std::vector<int32_t> prompt_token_ids;
    std::vector<ImageInput> images;  ///< one per image token of the prompt
    /// One parser per sub-sequence. Empty: the text stays as it is.
    std::function<std::unique_ptr<OutputParser>()> make_parser;
};

/// `conversation`: a JSON object of the line's messages, tools, thinking and reasoning_effort, as
/// far as they are there. May change `sampling`: chat stop strings belong to the parser (they are
/// not searched in reasoning), which then takes them out of sampling->stop. Called on the thread of
/// run_batch.
using RenderFunction = std::function<Result<RenderedPrompt>(const std::string& conversation,
                                                            SamplingParams* sampling)>;

/// A line of a foreign form, made ready by its own reader.
struct BatchJob {
    std::string id;
    Request request;
    std::function<std::unique_ptr<OutputParser>()> make_parser;
    /// The whole answer line, without the newline. Called on the thread of run_batch.
    std::function<std::string(const Completion&, const std::vector<ParsedOutput>&)> format;
};

struct BatchReader {
    /// Member that names a request in this form ("custom_id"); a line that has it belongs to the
    /// form, and finished answers are recognised by it.
    std::string id_member;
    std::function<Result<BatchJob>(const std::string& line)> read;
    /// The answer line of a failure, submission included.
    std::function<std::string(const std::string& id, const Status& error)> format_error;
};

struct BatchProgress {
    int64_t lines_total = 0;
    int64_t lines_done = 0;         ///< answers in the file: this run's and earlier ones
    int64_t lines_resumed = 0;      ///< of which earlier ones
    int64_t lines_failed = 0;       ///< of this run, answered with an error
    int64_t prompt_tokens = 0;      ///< of this run
    int64_t completion_tokens = 0;  ///< of this run, running requests included
    double elapsed_s = 0;
};

struct BatchOptions {
    RenderFunction render;             ///< empty: lines with "messages" are refused
    std::vector<BatchReader> readers;  ///< other line forms
    /// About ten times a second and at the end, on the thread of run_batch.
    std::function<void(const BatchProgress&)> on_progress;
    const std::atomic<bool>* cancel =
        nullptr;                ///< set: no new lines; running ones are aborted, unanswered
    int64_t max_in_flight = 0;  ///< 0 = four times max_num_seqs
};

/// Answers every line of `in_path` that `out_path` has no answer for yet. Answers are appended
/// whole and brought to the disk as they come; after a crash or kill −9 the same call goes on: a
/// torn last line is cut off, no line is lost or answered twice. The answer to a line
/// that uses an id again also holds "line", the number of that line. Both files must be regular
/// ones. kNotFound, kInvalidFile: the input cannot be read, or the output holds something else;
/// kUnavailable: another run writes the output; kCancelled: `cancel` was set (what is written
/// stays).
Result<BatchProgress> run_batch(Engine& engine,
                                const std::string& in_path,
                                const std::string& out_path,
                                const BatchOptions& options);

/// Reads the members of SamplingParams from a JSON object: every field under its own name (`stop`
/// may be one string, `logit_bias` an object of id → value, `so_args` an object). null = the
/// default. kInvalidArgument names the member. Ranges are SamplingParams::validate's business.
Result<SamplingParams> sampling_params_from_json(const std::string& json);

}  // namespace deepinfer
