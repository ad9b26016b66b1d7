// What goes into an engine and what comes out: Request, streamed Output deltas, Completion.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/image.h"
#include "deepinfer/sampling_params.h"
#include "deepinfer/status.h"

namespace deepinfer {

/// One prompt to continue, `sampling.n` times.
struct Request {
    std::string id;  ///< the caller's name for it; echoed in every Output, may be empty
    std::vector<int32_t> prompt_token_ids;  ///< at least one id, all below the vocabulary size
    /// One per image token of the prompt, in order. Each token becomes its picture's span; usage
    /// and limits count the span's tokens.
    std::vector<ImageInput> images;
    SamplingParams sampling;
    /// Who pays: service is fair between tenants, and cache blocks are shared inside one only.
    std::string tenant;
    std::string cache_salt;  ///< separates the prefix cache further; up to 256 bytes
};

/// Why a sub-sequence ended.
enum class FinishReason {
    kNone,       ///< it has not
    kStop,       ///< end of sequence, a stop id, a stop string, or on_output said so
    kLength,     ///< max_tokens or the context length
    kAbort,      ///< abort() or shutdown
    kEmptyMask,  ///< no token was allowed at a position (never sampled at random instead)
    kError,      ///< Output::error says what
};

/// "stop", "length", "abort", "empty_mask", "error"; "" for kNone. JSON uses these.
const char* finish_reason_name(FinishReason reason);

/// Log-probabilities at one position. Natural logarithm; `top` is sorted by value, ties by smaller
/// id.
struct TokenLogprobs {
    int32_t token_id = -1;
    double logprob = 0;
    std::vector<std::pair<int32_t, double>> top;

    bool operator==(const TokenLogprobs&) const = default;
};

struct Usage {
    int64_t prompt_tokens = 0;
    int64_t cached_tokens =
        0;  ///< prompt tokens whose cache blocks were found (of the first admission)
    int64_t completion_tokens = 0;  ///< over all n sub-sequences so far
};

/// Milliseconds since submit() unless said otherwise.
struct Timing {
    double queue_ms = 0;        ///< until the first row was scheduled
    double first_token_ms = 0;  ///< until the first token was there
    double total_ms = 0;        ///< until this Output
};

/// One delta of one sub-sequence. Text and ids do not run in step: text waits while it may still be
/// the start of a stop string or an unfinished character; joined deltas are the whole.
struct Output {
    uint64_t request = 0;  ///< what submit() returned
    std::string id;        ///< Request::id
    int index = 0;         ///< sub-sequence, 0 … n−1

    std::string text;  ///< new text; special tokens in their spelling, the stop itself left out
    std::vector<int32_t> token_ids;       ///< new ids, the stop or EOS id included
    std::vector<TokenLogprobs> logprobs;  ///< one per new id when sampling.logprobs asks for it
    /// One per prompt token when sampling.prompt_logprobs asks for it, with the first delta of
    /// sub-sequence 0; the entry of the first prompt token has no value (token_id = −1). Always
    /// raw.
    std::vector<TokenLogprobs> prompt_logprobs;

    /// With the request's first delta: what so_args.strict = false left out, as sentences.
    std::vector<std::string> constraint_notes;

    FinishReason finish_reason = FinishReason::kNone;
    std::string stop_text;    ///< the stop string that matched
    int32_t stop_token = -1;  ///< the id that ended it
    Status error;             ///< with kError
    bool nan_logits = false;  ///< some logit was NaN (counted as −∞)
    uint64_t seq_seed = 0;    ///< the seed in use, given or drawn: repeats the run
    bool last = false;        ///< the request's last Output: all sub-sequences have finished
    Usage usage;              ///< of the whole request so far
    Timing timing;

    bool finished() const { return finish_reason != FinishReason::kNone; }
};

/// How far a prompt is.
struct PrefillProgress {
    uint64_t request = 0;
    int index = 0;
    int64_t rows_done = 0;   ///< prompt rows computed or found in the cache
    int64_t rows_total = 0;  ///< prompt length
};

/// Called on the engine's thread between steps, one call at a time: return soon, and never call
/// wait-like functions of the engine from inside (submit and abort are fine).
struct RequestCallbacks {
    /// Every delta, at least one per sub-sequence (the finished one). Returning false ends this
    /// sub-sequence here with kStop: one more, empty Output says so, and tokens that were already
    /// under way are dropped and not counted. Exact, unlike abort(): a parser uses it for its own
    /// stops.
    std::function<bool(const Output&)> on_output;
    /// After each step that computed prompt rows of the request.
    std::function<void(const PrefillProgress&)> on_prefill;
};

/// One whole sub-sequence.
struct CompletionChoice {
    std::string text;
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    FinishReason finish_reason = FinishReason::kNone;
    std::string stop_text;
    uint64_t seq_seed = 0;
    Status error;
    bool nan_logits = false;  ///< some logit was NaN
};

/// What Engine::generate() returns: all deltas joined.
struct Completion {
    std::vector<CompletionChoice> choices;  ///< n of them, in order of index
    std::vector<std::string> constraint_notes;
    Usage usage;
    Timing timing;
};

}  // namespace deepinfer
