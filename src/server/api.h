// The handlers behind the routes, and what they share. They run on the work pool.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/recipe_protocol.h"
#include "recipe/json_value.h"
#include "server/state.h"
#include "server/task.h"

namespace deepinfer::server {

// ------------------------------------------------------------------ errors

/// An error answer in the shape of its route.
Answer error_answer(ErrorShape shape, const recipe::ApiError& error);
/// `param` may name a place inside a field ("messages[1].content"): clients get the field.
recipe::ApiError api_error(int status,
                           std::string type,
                           std::string message,
                           std::string code = "");
recipe::ApiError bad_request(std::string message, std::string param = "");
/// What the engine said, as HTTP says it.
recipe::ApiError from_status(const Status& status);

// ------------------------------------------------------------------ bodies

/// Parses a request body within the limits of the configuration: depth, keys, strings, one meaning.
/// Fills *error and returns nothing if it is refused.
std::optional<recipe::Json> read_body(const ServerState& state,
                                      const std::string& body,
                                      recipe::ApiError* error);

// ------------------------------------------------------------------ generation

/// Turns the deltas of one request's choices into its protocol's answer.
class AnswerWriter {
  public:
    virtual ~AnswerWriter() = default;
    /// With the request's first delta, before output() gets it: usage and what a constraint leaves
    /// out stand in it. Frames are appended to *frames.
    virtual void begin(const Output& first, std::string* frames) = 0;
    /// False: this choice is complete by its text; what comes after is not wanted.
    virtual bool output(int choice, const Output& output, std::string* frames) = 0;
    /// The stream ends by a fault. Also before begin().
    virtual void fail(const recipe::ApiError& error, std::string* frames) = 0;
    /// All choices have ended: what still belongs at the end of the stream.
    virtual void end(std::string* frames) = 0;
    /// All choices have ended: the answer that is not streamed.
    virtual std::string whole() = 0;

    virtual ErrorShape error_shape() const = 0;
    virtual int64_t completion_tokens() const = 0;
    /// "stop", "length", "tool_calls" of the last choice that ended.
    virtual std::string finish_reason() const = 0;
    virtual int64_t events() const = 0;
};

struct GenerationPlan {
    std::vector<Request> requests;  ///< one a prompt; choice = prompt index * n + sub-sequence
    std::unique_ptr<AnswerWriter> writer;
    bool stream = false;
    int64_t prompt_tokens = 0;     ///< with the pictures' spans
    std::string constraint_field;  ///< what the client calls the constraint
    recipe::Protocol protocol = recipe::Protocol::kChatCompletions;
};

/// Submits the requests and gives the task, or the error that the engine answered.
Answer start_generation(ServerState& state, Exchange& exchange, GenerationPlan plan);

// ------------------------------------------------------------------ handlers

Answer handle_conversation(ServerState& state, Exchange& exchange, recipe::Protocol protocol);
Answer handle_completions(ServerState& state, Exchange& exchange);
Answer handle_count_tokens(ServerState& state, Exchange& exchange);
Answer handle_tokenize(ServerState& state, Exchange& exchange);
Answer handle_detokenize(ServerState& state, Exchange& exchange);
Answer handle_models(ServerState& state, Exchange& exchange);
Answer handle_model(ServerState& state, Exchange& exchange);
Answer handle_stored_response(ServerState& state, Exchange& exchange, bool remove);
Answer handle_cancel(ServerState& state, Exchange& exchange);
Answer handle_admin(ServerState& state, Exchange& exchange);
Answer handle_health_generate(ServerState& state, Exchange& exchange);

/// Any route that has to be worked at; the quick ones (health, pages) are the listener's.
Answer handle(ServerState& state, Exchange& exchange);

// ------------------------------------------------------------------ conversations

/// A converted conversation with its prompt, ready for sampling once with_pictures() has been at
/// it (server/pictures.h).
struct PreparedConversation {
    recipe::ConvertedRequest request;
    std::vector<int32_t> prompt_token_ids;  ///< one image token a picture
    std::vector<ImageInput> images;
    std::vector<int32_t> expanded_ids;  ///< what usage counts
};

/// Refuses a text that cannot fit the context, by its size alone: it has at least
/// bytes / longest_token_bytes tokens. True: it may fit.
bool may_fit_context(const ServerState& state,
                     size_t text_bytes,
                     const std::string& param,
                     recipe::ApiError* error);
/// The error of a prompt that has more tokens than the context; how many was not counted.
recipe::ApiError longer_than_context(const ServerState& state, const std::string& param);
/// The most ids of a prompt that are worth making: one token has to be left for the answer.
size_t most_prompt_ids(const ServerState& state);

/// Converts and renders; shared by generation, count_tokens and tokenize. `for_generation`: a
/// prompt that does not fit the context is refused before all of it has been tokenized.
std::optional<PreparedConversation> prepare_conversation(ServerState& state,
                                                         recipe::Protocol protocol,
                                                         const recipe::Json& body,
                                                         bool for_generation,
                                                         recipe::ApiError* error);

/// The engine's parameters for what the client asked of sampling. `num_prompt_tokens` bounds the
/// output; `default_max_tokens` is lowered to what the context leaves, an asked limit is refused
/// instead.
std::optional<SamplingParams> sampling_params(const ServerState& state,
                                              const recipe::RequestSampling& asked,
                                              int64_t num_prompt_tokens,
                                              int64_t default_max_tokens,
                                              recipe::ApiError* error);

/// The log-probabilities of a delta's tokens [begin, end) in the form of Chat Completions; the
/// token that ended the answer is left out.
std::string logprobs_json(const Tokenizer& tokenizer,
                          const Output& output,
                          size_t begin,
                          size_t end);

}  // namespace deepinfer::server
