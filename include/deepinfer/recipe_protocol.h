// The three protocols: request bodies in, stream events and whole answers out; and the JSON Lines
// doors of `deepinfer encode` and `deepinfer parse`.
//
//   recipe::ConvertResult r = recipe::convert_request(Protocol::kMessages, body, {});
//   if (!r.request) return answer(r.error.status, recipe::error_body(protocol, r.error));
//   auto responder = recipe::make_responder(*r.request, context);
//   send(responder->start());
//   for (each step) send(responder->push(text, num_tokens));
//   send(responder->finish(FinishReason::kStop));     // or, not streamed: responder->response()
//
// Bodies are untrusted. Nothing here throws; a body that is refused gives an ApiError that names
// what was found, what was expected and (param) where.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/recipe.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer::recipe {

enum class Protocol { kChatCompletions, kMessages, kResponses };

/// "chat_completions", "messages" or "responses"; nullopt for another word.
std::optional<Protocol> protocol_from_name(std::string_view name);

/// A refused request.
struct ApiError {
    int status = 400;
    std::string type = "invalid_request_error";
    std::string message;
    std::string param;  ///< the field, as "messages[1].content"; may be empty
    std::string code;   ///< OpenAI's error.code; may be empty
};

/// The body of an error answer in the protocol's shape (prompt spec 7.6).
std::string error_body(Protocol protocol, const ApiError& error);

struct ConvertOptions {
    /// Refuse, ignore and clamp exactly what deepseek-recipe 0.2.0 does (prompt spec 7.7).
    bool compat = false;
    std::vector<std::string> model_names = {"deepseek-flash"};
    bool thinking_default = true;
    /// Messages: a web search declaration and its blocks are left out instead of refused.
    bool ignore_web_search = false;
    /// Responses: previous_response_id names a turn that the caller has joined to the input.
    bool stored_responses = false;
    /// With `parse`, text that spells the image placeholder is refused (it would become one).
    bool special_in_content_parse = false;
};

/// What the client asked of sampling; unset fields take the engine's defaults.
struct RequestSampling {
    double temperature = 1.0;
    double top_p = 1.0;
    double presence_penalty = 0.0;
    double frequency_penalty = 0.0;
    double repetition_penalty = 1.0;
    double min_p = 0.0;
    int64_t top_k = 0;  ///< 0: off
    int64_t min_tokens = 0;
    int n = 1;
    bool ignore_eos = false;
    std::optional<int64_t> max_tokens;
    std::optional<uint64_t> seed;
    bool logprobs = false;
    std::optional<int> top_logprobs;
    std::vector<int64_t> stop_token_ids;
    std::vector<std::pair<int64_t, double>> logit_bias;
    StructuredOutputArgs
        so_args;  ///< structured_outputs or guided_* (recipe_constraint.h has the rest)
};

struct ConvertedRequest {
    Protocol protocol = Protocol::kChatCompletions;
    bool compat = false;
    std::string model;
    Conversation conversation;
    RequestSampling sampling;
    ParsingOptions parsing;
    bool stream = false;
    bool include_usage = false;  ///< stream_options.include_usage
    /// A tool must be called. While thinking the prompt cannot begin the call: the answer after
    /// "</think>" is to be constrained to calls (prompt spec 3.6).
    bool must_call = false;
    std::string user;
    bool store = true;                 ///< Responses
    std::string previous_response_id;  ///< Responses

    /// Responses: the fields of the request that its answers repeat, JSON members without braces.
    std::string echo;
    /// Responses: shown tool name -> {namespace, own name}.
    std::map<std::string, std::pair<std::string, std::string>> namespace_tools;
    /// Responses: shown names of tools that take plain text (apply_patch).
    std::vector<std::string> custom_tools;
};

struct ConvertResult {
    std::optional<ConvertedRequest> request;
    ApiError error;  ///< meaningful without a request
};

/// Reads and checks a request body (raw bytes).
ConvertResult convert_request(Protocol protocol,
                              std::string_view body,
                              const ConvertOptions& options);

// ------------------------------------------------------------------ answers

/// One frame of a stream. Chat Completions events have no name; its closing "[DONE]" is the
/// server's.
struct StreamEvent {
    std::string name;  ///< "content_block_delta", "response.completed", …
    std::string data;  ///< one JSON object
};

/// What the responders of one request's choices share (Chat Completions with n > 1): the usage of
/// all of them stands in the last final chunk.
struct ChoiceGroup {
    int num_unfinished = 1;
    int64_t completion_tokens = 0;
    int64_t reasoning_tokens = 0;
};

struct ResponseContext {
    std::string response_id;
    std::string model;
    int64_t created = 0;  ///< seconds since 1970
    std::string system_fingerprint;
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int choice_idx = 0;                  ///< Chat Completions with n > 1
    std::shared_ptr<ChoiceGroup> group;  ///< Chat Completions with n > 1; else null
    /// Chat Completions: usage comes in a chunk of its own without choices, as OpenAI sends it.
    bool usage_chunk = false;
    /// What a constraint that is not strict leaves out; the answer lists it as `constraint_notes`.
    std::vector<std::string> constraint_notes = {};
    std::function<int64_t()> now;  ///< for completed_at of Responses; unset: `created`
};

/// Turns one answer's text into its protocol's events, and keeps the whole answer. Events and
/// response() agree: accumulating the former gives the latter. One thread at a time.
class Responder {
  public:
    virtual ~Responder() = default;

    virtual std::vector<StreamEvent> start() = 0;
    /// Text of sampled tokens (special tokens kept; EOS has no text but counts: push("", 1)).
    /// Pushed one by one, the tokens before "</think>" are counted exactly.
    /// `logprobs`: the tokens' log-probabilities as JSON objects joined by ", " in the protocol's
    /// form (token_logprob_json), if the request asked for them.
    std::vector<StreamEvent> push(std::string_view text,
                                  int64_t num_tokens,
                                  std::string_view logprobs = {});
    /// The end; only the first call counts. Call it also after finished().
    virtual std::vector<StreamEvent> finish(FinishReason reason) = 0;
    /// The end by a fault after the stream has begun: the event that says so. finish() has no
    /// effect after it.
    virtual std::vector<StreamEvent> fail(const ApiError& error) = 0;
    /// The object of the answer that is not streamed; complete after finish().
    virtual std::string response() const = 0;

    /// A stop sequence ended the answer: stop generating and call finish().
    bool finished() const;
    FinishReason finish_reason() const { return parser_.finish_reason(); }
    const ParserCounters& counters() const { return parser_.counters(); }
    int64_t completion_tokens() const { return completion_tokens_; }
    int64_t reasoning_tokens() const { return reasoning_tokens_; }
    bool in_reasoning() const { return parser_.in_reasoning(); }

  protected:
    Responder(const ConvertedRequest& request, ResponseContext context);
    virtual void on_deltas(const std::vector<Delta>& deltas, std::vector<StreamEvent>* events) = 0;

    const ResponseContext context_;
    const bool thinking_;
    const bool compat_;
    StreamParser parser_;
    int64_t completion_tokens_ = 0;
    int64_t reasoning_tokens_ = 0;
    /// Log-probabilities of all tokens so far, by where they were read; JSON objects joined by ",
    /// ".
    std::string content_logprobs_;
    std::string reasoning_logprobs_;
};

/// {"token", "logprob", "bytes", "top_logprobs"} of one sampled token: its bytes and its value, and
/// those of the likeliest ones.
std::string token_logprob_json(std::string_view bytes,
                               double logprob,
                               const std::vector<std::pair<std::string_view, double>>& top);

/// The whole answer of a request with n > 1 from the response() of each choice, in order.
std::string join_chat_choices(const std::vector<std::string>& responses);

std::unique_ptr<Responder> make_responder(const ConvertedRequest& request, ResponseContext context);

// ------------------------------------------------------------------ JSON Lines

/// One request line of `deepinfer encode --json` -> its answer line (no newline at the end).
///
///   {"id", "op": "encode", "protocol", "body" | "body_text", "profile", "special_in_content",
///    "compat"} -> {"id", "text", "ids", "images", ["conversation", "sampling", "parsing",
///    "stream"]}
///
/// A refused line gives {"id", "error": {"status", "type", "message", "param"}}, with id null where
/// the line is no JSON object. Unknown keys are ignored.
std::string encode_json_line(const Tokenizer& tokenizer, std::string_view line);

/// One request line of `deepinfer parse --json`: op parse or respond. The tokenizer is needed for
/// `tokens` and op respond only and may be null otherwise (such lines are then refused).
std::string parse_json_line(const Tokenizer* tokenizer, std::string_view line);

}  // namespace deepinfer::recipe
