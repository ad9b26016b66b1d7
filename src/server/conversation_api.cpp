// Chat Completions, Messages and Responses: body -> conversation -> prompt -> answer.
#include <openssl/sha.h>

#include <algorithm>

#include "recipe/convert.h"
#include "recipe/utf8_stream.h"
#include "server/api.h"
#include "server/constraints.h"
#include "server/pictures.h"

namespace deepinfer::server {
namespace {

using recipe::ApiError;
using recipe::ConvertedRequest;
using recipe::Json;
using recipe::Protocol;

ErrorShape shape_of(Protocol protocol) {
    return protocol == Protocol::kMessages ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
}

void append_events(const std::vector<recipe::StreamEvent>& events, std::string* frames) {
    for (const recipe::StreamEvent& event : events) {
        if (!event.name.empty()) *frames += "event: " + event.name + "\n";
        *frames += "data: ";
        *frames += event.data;
        *frames += "\n\n";
    }
}

/// What a stored turn needs to be gone on with.
struct TurnToStore {
    ResponseStore* store = nullptr;
    std::string owner;
    std::string items;  ///< of the request
};

/// The three conversation protocols, one responder a choice.
class ConversationWriter final : public AnswerWriter {
  public:
    ConversationWriter(const Tokenizer& tokenizer,
                       ConvertedRequest request,
                       recipe::ResponseContext context,
                       Metrics* metrics,
                       TurnToStore turn)
        : tokenizer_(tokenizer),
          request_(std::move(request)),
          context_(std::move(context)),
          metrics_(metrics),
          turn_(std::move(turn)),
          think_end_(tokenizer.id_of("</think>")) {}

    void begin(const Output& first, std::string* frames) override {
        context_.cached_tokens = first.usage.cached_tokens;
        context_.constraint_notes = first.constraint_notes;
        const int n = request_.sampling.n;
        if (n > 1) {
            context_.group = std::make_shared<recipe::ChoiceGroup>();
            context_.group->num_unfinished = n;
        }
        for (int i = 0; i < n; ++i) {
            context_.choice_idx = i;
            responders_.push_back(recipe::make_responder(request_, context_));
            add(responders_.back()->start(), frames);
        }
    }

    bool output(int choice, const Output& o, std::string* frames) override {
        recipe::Responder& responder = *responders_[static_cast<size_t>(choice)];
        const size_t n = o.token_ids.size();
        std::string_view text = o.text;
        size_t pushed = 0;
        // Several tokens at once: what stands before the end of the reasoning is counted apart.
        if (n > 1 && responder.in_reasoning()) {
            const auto end = std::find(o.token_ids.begin(), o.token_ids.end(), think_end_);
            constexpr std::string_view kEnd = "</think>";
            const size_t place = text.find(kEnd);
            if (end != o.token_ids.end() && place != std::string_view::npos) {
                const size_t before = static_cast<size_t>(end - o.token_ids.begin());
                push(&responder, text.substr(0, place), o, 0, before, frames);
                push(&responder, kEnd, o, before, before + 1, frames);
                text = text.substr(place + kEnd.size());
                pushed = before + 1;
            }
        }
        push(&responder, text, o, pushed, n, frames);
        if (!responder.finished() && !o.finished()) return true;
        add(responder.finish(o.finish_reason == FinishReason::kLength
                                 ? recipe::FinishReason::kLength
                                 : recipe::FinishReason::kStop),
            frames);
        finish_reason_ = recipe::finish_reason_name(responder.finish_reason());
        const recipe::ParserCounters& c = responder.counters();
        metrics_->invalid_markers += c.num_invalid_markers;
        metrics_->repaired_calls += c.num_repaired_arguments;
        metrics_->undeclared_calls += c.num_undeclared_calls;
        return false;
    }

    void fail(const ApiError& error, std::string* frames) override {
        if (responders_.empty()) {
            // Nothing has been said yet: Responses and Messages begin all the same.
            std::string unseen;
            begin(Output(), request_.protocol == Protocol::kResponses ? frames : &unseen);
        }
        add(responders_.front()->fail(error), frames);
        turn_.store = nullptr;
        end(frames);
    }

    void end(std::string* frames) override {
        if (request_.protocol == Protocol::kChatCompletions) *frames += "data: [DONE]\n\n";
        store();
    }

    std::string whole() override {
        store();
        std::vector<std::string> answers;
        for (const auto& responder : responders_) answers.push_back(responder->response());
        return answers.size() == 1 ? answers[0] : recipe::join_chat_choices(answers);
    }

    ErrorShape error_shape() const override { return shape_of(request_.protocol); }
    int64_t completion_tokens() const override {
        int64_t n = 0;
        for (const auto& responder : responders_) n += responder->completion_tokens();
        return n;
    }
    std::string finish_reason() const override { return finish_reason_; }
    int64_t events() const override { return events_; }

  private:
    void add(const std::vector<recipe::StreamEvent>& events, std::string* frames) {
        events_ += static_cast<int64_t>(events.size());
        append_events(events, frames);
    }

    void push(recipe::Responder* responder,
              std::string_view text,
              const Output& o,
              size_t begin,
              size_t end,
              std::string* frames) {
        std::string logprobs;
        if (request_.sampling.logprobs) logprobs = logprobs_json(tokenizer_, o, begin, end);
        add(responder->push(text, static_cast<int64_t>(end - begin), logprobs), frames);
    }

    /// The items of the conversation with this answer, for the turn that goes on with it.
    void store() {
        if (turn_.store == nullptr || responders_.empty()) return;
        StoredTurn turn;
        turn.owner = turn_.owner;
        turn.response = responders_[0]->response();
        const Result<Json> response = recipe::parse_json(turn.response);
        if (!response.ok()) return;
        turn.items = turn_.items;
        for (const Json& item : response.value().find("output")->items()) {
            if (!turn.items.empty()) turn.items += ", ";
            turn.items += recipe::dump_python(item);
        }
        turn_.store->put(context_.response_id, std::move(turn), std::chrono::steady_clock::now());
        turn_.store = nullptr;
    }

    const Tokenizer tokenizer_;
    const ConvertedRequest request_;
    recipe::ResponseContext context_;
    Metrics* metrics_;
    TurnToStore turn_;
    const int32_t think_end_;
    std::vector<std::unique_ptr<recipe::Responder>> responders_;
    std::string finish_reason_;
    int64_t events_ = 0;
};

/// Puts the conversation before it in front of the body's input. Gives the items of the joined
/// input (JSON, joined by commas), or nothing and an error.
std::optional<std::string> join_stored_turn(ServerState& state,
                                            const std::string& owner,
                                            Json* body,
                                            ApiError* error) {
    std::string items;
    if (const Json* previous = body->find("previous_response_id");
        previous != nullptr && previous->is_string() && state.store.enabled()) {
        const auto turn =
            state.store.get(previous->as_string(), owner, std::chrono::steady_clock::now());
        if (!turn) {
            *error = api_error(404,
                               "not_found_error",
                               "previous_response_id: no stored response '" +
                                   previous->as_string().substr(0, 100) + "'",
                               "response_not_found");
            error->param = "previous_response_id";
            return std::nullopt;
        }
        items = turn->items;
    }
    const auto add = [&items](const Json& item) {
        if (!items.empty()) items += ", ";
        items += recipe::dump_python(item);
    };
    const Json* input = body->find("input");
    if (input != nullptr && input->is_string()) {
        Json message = Json::object({{"type", "message"}, {"role", "user"}});
        message.set("content", *input);
        add(message);
    } else if (input != nullptr && input->is_array()) {
        for (const Json& item : input->items()) add(item);
    } else if (items.empty()) {
        return items;  // the converter says what is wrong
    }
    if (body->has_duplicate_keys()) return items;
    Result<Json> joined = recipe::parse_json("[" + items + "]");
    if (joined.ok()) body->set("input", std::move(joined).value());
    return items;
}

std::string hash_of(const std::string& text) {
    if (text.empty()) return {};
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out;
    for (int i = 0; i < 8; ++i) {
        out.push_back(kHex[digest[i] >> 4]);
        out.push_back(kHex[digest[i] & 15]);
    }
    return out;
}

bool check_stops(const ConvertedRequest& request, ApiError* error) {
    const bool messages = request.protocol == Protocol::kMessages;
    for (const std::string& stop : request.parsing.stop) {
        if (stop.size() <= static_cast<size_t>(SamplingParams::kMaxStopBytes)) continue;
        *error = bad_request("a stop sequence has " + std::to_string(stop.size()) +
                                 " bytes, expected at most " +
                                 std::to_string(SamplingParams::kMaxStopBytes),
                             messages ? "stop_sequences" : "stop");
        return false;
    }
    return true;
}

/// Output limit when the client names none (prompt spec 7.2).
int64_t default_max_tokens(const ConvertedRequest& request) {
    if (!request.conversation.thinking) return 8192;
    return request.conversation.effort.value >= 100 ? 131072 : 65536;
}

/// `cache_salt` is ours (and vLLM's), in no protocol.
bool read_cache_salt(const Json& body, std::string* salt, ApiError* error) {
    const Json* value = body.find("cache_salt");
    if (value == nullptr || value->is_null()) return true;
    if (!value->is_string() || value->as_string().size() > 256) {
        *error = bad_request("cache_salt: expected a string of at most 256 bytes", "cache_salt");
        return false;
    }
    *salt = value->as_string();
    return true;
}

const char* response_prefix(Protocol protocol) {
    switch (protocol) {
        case Protocol::kMessages:
            return "msg_";
        case Protocol::kResponses:
            return "resp_";
        case Protocol::kChatCompletions:
            break;
    }
    return "chatcmpl-";
}

}  // namespace

std::string logprobs_json(const Tokenizer& tokenizer, const Output& o, size_t begin, size_t end) {
    std::string out;
    std::vector<std::pair<std::string_view, double>> top;
    const auto bytes = [&](int32_t id) {
        return tokenizer.contains(id) ? tokenizer.token_bytes(id) : std::string_view();
    };
    for (size_t i = begin; i < end && i < o.logprobs.size(); ++i) {
        const TokenLogprobs& t = o.logprobs[i];
        if (o.finished() && i + 1 == o.token_ids.size() && t.token_id == o.stop_token) continue;
        top.clear();
        for (const auto& [id, value] : t.top) top.emplace_back(bytes(id), value);
        if (!out.empty()) out += ", ";
        out += recipe::token_logprob_json(bytes(t.token_id), t.logprob, top);
    }
    return out;
}

size_t most_prompt_ids(const ServerState& state) {
    return static_cast<size_t>(std::max<int64_t>(1, state.backend()->config().max_model_len - 1));
}

ApiError longer_than_context(const ServerState& state, const std::string& param) {
    ApiError error =
        bad_request("this model's context length is " +
                        std::to_string(state.backend()->config().max_model_len) +
                        " tokens; the prompt has more than " +
                        std::to_string(most_prompt_ids(state)) + ", which leaves no room",
                    param);
    error.code = "context_length_exceeded";
    return error;
}

bool may_fit_context(const ServerState& state,
                     size_t text_bytes,
                     const std::string& param,
                     ApiError* error) {
    if (text_bytes / state.longest_token_bytes() <= most_prompt_ids(state)) return true;
    *error = longer_than_context(state, param);
    return false;
}

std::optional<PreparedConversation> prepare_conversation(
    ServerState& state, Protocol protocol, const Json& body, bool for_generation, ApiError* error) {
    recipe::ConvertOptions options;
    options.compat = state.config.compat;
    options.model_names = state.config.served_model_names;
    options.thinking_default = state.config.thinking_default;
    options.ignore_web_search = state.config.ignore_web_search;
    options.stored_responses = state.store.enabled();
    recipe::ConvertResult converted = recipe::convert_body(protocol, body, options);
    if (!converted.request) {
        *error = std::move(converted.error);
        return std::nullopt;
    }
    PreparedConversation out;
    out.request = std::move(*converted.request);
    if (for_generation && (!check_stops(out.request, error) ||
                           !check_constraints(state.config.limits, out.request, error)))
        return std::nullopt;
    recipe::EncodeOptions encode;
    encode.compat = state.config.compat;
    const PromptText prompt = recipe::encode_prompt(out.request.conversation, encode);
    if (static_cast<int64_t>(prompt.text.size()) > state.config.limits.prompt_text_bytes) {
        *error = bad_request("the prompt has " + std::to_string(prompt.text.size()) +
                             " bytes of text, expected at most " +
                             std::to_string(state.config.limits.prompt_text_bytes));
        error->code = "context_length_exceeded";
        return std::nullopt;
    }
    if (for_generation && !may_fit_context(state, prompt.text.size(), "messages", error))
        return std::nullopt;
    const size_t most = for_generation ? most_prompt_ids(state) : Tokenizer::kAllIds;
    Result<std::vector<int32_t>> ids =
        recipe::prompt_ids(state.backend()->tokenizer(), prompt, most);
    if (!ids.ok()) {
        *error = from_status(ids.status());
        return std::nullopt;
    }
    if (ids.value().size() > most) {
        *error = longer_than_context(state, "messages");
        return std::nullopt;
    }
    out.prompt_token_ids = std::move(ids).value();
    return out;
}

std::optional<SamplingParams> sampling_params(const ServerState& state,
                                              const recipe::RequestSampling& asked,
                                              int64_t num_prompt_tokens,
                                              int64_t default_max_tokens,
                                              ApiError* error) {
    const InferenceBackend& backend = *state.backend();
    const int64_t context = backend.config().max_model_len;
    const int64_t room = context - num_prompt_tokens;
    if (room < 1 || (asked.max_tokens && *asked.max_tokens > room)) {
        std::string what = "this model's context length is " + std::to_string(context) +
                           " tokens; the prompt has " + std::to_string(num_prompt_tokens);
        if (asked.max_tokens) what += " and max_tokens is " + std::to_string(*asked.max_tokens);
        *error = bad_request(what, "messages");
        error->code = "context_length_exceeded";
        return std::nullopt;
    }
    SamplingParams p;
    p.temperature = asked.temperature;
    p.top_p = asked.top_p;
    p.presence_penalty = asked.presence_penalty;
    p.frequency_penalty = asked.frequency_penalty;
    p.repetition_penalty = asked.repetition_penalty;
    p.min_p = asked.min_p;
    p.top_k = asked.top_k;
    p.min_tokens = asked.min_tokens;
    p.n = asked.n;
    p.ignore_eos = asked.ignore_eos;
    p.max_tokens = asked.max_tokens ? *asked.max_tokens : std::min(default_max_tokens, room);
    p.seq_seed = asked.seed;
    if (asked.logprobs) p.logprobs = asked.top_logprobs.value_or(0);
    const auto known = [&](int64_t id, const char* field) {
        if (id >= 0 && id < backend.tokenizer().vocab_size()) return true;
        *error = bad_request(
            std::string(field) + ": the tokenizer has no token " + std::to_string(id), field);
        return false;
    };
    for (const int64_t id : asked.stop_token_ids) {
        if (!known(id, "stop_token_ids")) return std::nullopt;
        p.stop_token_ids.push_back(static_cast<int32_t>(id));
    }
    if (asked.logit_bias.size() > static_cast<size_t>(SamplingParams::kMaxLogitBias)) {
        *error = bad_request("logit_bias has " + std::to_string(asked.logit_bias.size()) +
                                 " entries, expected at most " +
                                 std::to_string(SamplingParams::kMaxLogitBias),
                             "logit_bias");
        return std::nullopt;
    }
    for (const auto& [id, value] : asked.logit_bias) {
        if (!known(id, "logit_bias")) return std::nullopt;
        p.logit_bias.emplace_back(static_cast<int32_t>(id), value);
    }
    if (p.min_tokens > *p.max_tokens) {
        *error = bad_request("min_tokens is " + std::to_string(p.min_tokens) +
                                 ", more than max_tokens, " + std::to_string(*p.max_tokens),
                             "min_tokens");
        return std::nullopt;
    }
    return p;
}

namespace {

Answer generate_conversation(ServerState& state,
                             Exchange& exchange,
                             PreparedConversation& prepared,
                             TurnToStore turn,
                             const std::string& cache_salt) {
    ConvertedRequest& request = prepared.request;
    const Protocol protocol = request.protocol;
    const ErrorShape shape = shape_of(protocol);
    const int64_t num_prompt_tokens = static_cast<int64_t>(prepared.expanded_ids.size());
    ApiError error;
    std::optional<SamplingParams> sampling = sampling_params(
        state, request.sampling, num_prompt_tokens, default_max_tokens(request), &error);
    if (!sampling) return error_answer(shape, error);
    apply_constraints(request, &*sampling);

    exchange.record.model = request.model;
    exchange.record.user_hash = hash_of(request.user);
    recipe::ResponseContext context;
    context.response_id = random_id(response_prefix(protocol));
    context.model = request.model;
    context.created = unix_seconds();
    context.system_fingerprint = "fp_" DEEPINFER_VERSION;
    context.prompt_tokens = num_prompt_tokens;
    context.usage_chunk = state.config.openai_usage_chunk;
    context.now = &unix_seconds;

    GenerationPlan plan;
    plan.stream = request.stream;
    plan.protocol = protocol;
    plan.prompt_tokens = num_prompt_tokens;
    plan.constraint_field = constraint_field(request);
    Request r;
    r.id = exchange.id;
    r.prompt_token_ids = std::move(prepared.prompt_token_ids);
    r.images = std::move(prepared.images);
    r.sampling = std::move(*sampling);
    r.tenant = exchange.caller.tenant;
    r.cache_salt = cache_salt;
    plan.requests.push_back(std::move(r));
    plan.writer = std::make_unique<ConversationWriter>(state.backend()->tokenizer(),
                                                       std::move(request),
                                                       std::move(context),
                                                       &state.metrics,
                                                       std::move(turn));
    return start_generation(state, exchange, std::move(plan));
}

}  // namespace

Answer handle_conversation(ServerState& state, Exchange& exchange, Protocol protocol) {
    const ErrorShape shape = shape_of(protocol);
    ApiError error;
    std::optional<Json> body = read_body(state, exchange.request.body, &error);
    if (!body) return error_answer(shape, error);
    exchange.request.body = {};  // up to 48 MiB that nobody needs any more
    TurnToStore turn;
    if (protocol == Protocol::kResponses && !state.config.compat) {
        const auto items = join_stored_turn(state, exchange.caller.tenant, &*body, &error);
        if (!items) return error_answer(shape, error);
        turn = {&state.store, exchange.caller.tenant, *items};
    }
    std::string cache_salt;
    if (!read_cache_salt(*body, &cache_salt, &error)) return error_answer(shape, error);
    std::optional<PreparedConversation> prepared =
        prepare_conversation(state, protocol, *body, true, &error);
    if (!prepared) return error_answer(shape, error);
    ConvertedRequest& request = prepared->request;
    if (state.config.deepseek_sampling) {
        recipe::RequestSampling& s = request.sampling;
        const bool thinking = request.conversation.thinking;
        s.temperature = thinking ? 1.0 : s.temperature;
        s.top_p = thinking ? std::clamp(s.top_p, 0.95, 1.0) : 1.0;
    }
    if (!request.store || !state.store.enabled()) turn.store = nullptr;
    const bool stream = request.stream;
    return with_pictures(
        state,
        exchange,
        shape,
        stream,
        std::move(*prepared),
        [&state, turn = std::move(turn), cache_salt](Exchange& own, PreparedConversation& ready) {
            return generate_conversation(state, own, ready, turn, cache_salt);
        });
}

Answer handle_stored_response(ServerState& state, Exchange& exchange, bool remove) {
    const auto unknown = [&] {
        return error_answer(
            ErrorShape::kOpenAi,
            api_error(404,
                      "not_found_error",
                      "no stored response '" + exchange.parameter.substr(0, 100) + "'",
                      "response_not_found"));
    };
    Answer answer;
    if (remove) {
        if (!state.store.remove(exchange.parameter, exchange.caller.tenant)) return unknown();
        Json out = Json::object({{"id", exchange.parameter}, {"object", "response"}});
        out.set("deleted", true);
        answer.reply.body = recipe::dump_python(out);
        return answer;
    }
    const auto turn = state.store.get(
        exchange.parameter, exchange.caller.tenant, std::chrono::steady_clock::now());
    if (!turn) return unknown();
    answer.reply.body = turn->response;
    return answer;
}

}  // namespace deepinfer::server
