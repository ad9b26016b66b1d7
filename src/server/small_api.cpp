// The routes that answer at once: models, tokens, counting, administration.
#include "recipe/fields.h"
#include "server/api.h"
#include "server/pictures.h"

namespace deepinfer::server {
namespace {

using recipe::ApiError;
using recipe::Fields;
using recipe::Json;

Answer json_answer(const Json& json) {
    Answer answer;
    answer.reply.body = recipe::dump_python(json);
    return answer;
}

std::string iso_time(int64_t seconds) {
    const std::time_t time = static_cast<std::time_t>(seconds);
    std::tm utc{};
    gmtime_r(&time, &utc);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

Json model_json(const ServerState& state, const std::string& name, bool anthropic) {
    if (anthropic) {
        return Json::object({{"type", "model"},
                             {"id", name},
                             {"display_name", name},
                             {"created_at", iso_time(state.started_s)}});
    }
    Json out = Json::object({{"id", name},
                             {"object", "model"},
                             {"created", state.started_s},
                             {"owned_by", "deepinfer"}});
    if (const InferenceBackend* backend = state.backend())
        out.set("max_model_len", backend->config().max_model_len);
    return out;
}

/// Runs `work`, which may refuse.
template <typename Work>
Answer refusing(ErrorShape shape, Work work) {
    try {
        return work();
    } catch (const recipe::Refusal& refusal) {
        return error_answer(shape, refusal.error());
    }
}

/// As text: as JSON values millions of ids would take fifty times their size.
Json ids_json(const std::vector<int32_t>& ids) {
    std::string out = "[";
    for (const int32_t id : ids) {
        if (out.size() > 1) out += ", ";
        out += std::to_string(id);
    }
    return Json::raw(out + "]");
}

Answer tokens_answer(const ServerState& state, const std::vector<int32_t>& ids, bool strings) {
    const Tokenizer& tokenizer = state.backend()->tokenizer();
    Json out = Json::object({{"count", static_cast<int64_t>(ids.size())},
                             {"max_model_len", state.backend()->config().max_model_len}});
    out.set("tokens", ids_json(ids));
    if (strings) {
        Json list = Json::array();
        for (const int32_t id : ids) list.push_back(tokenizer.token_text(id));
        out.set("token_strs", std::move(list));
    }
    return json_answer(out);
}

}  // namespace

Answer handle_models(ServerState& state, Exchange& exchange) {
    const bool anthropic = !exchange.request.field("anthropic-version").empty();
    Json list = Json::array();
    const auto& names = state.config.served_model_names;
    for (const std::string& name : names) list.push_back(model_json(state, name, anthropic));
    Json out = anthropic ? Json::object() : Json::object({{"object", "list"}});
    out.set("data", std::move(list));
    if (anthropic) {
        out.set("has_more", false);
        out.set("first_id", names.front());
        out.set("last_id", names.back());
    }
    return json_answer(out);
}

Answer handle_model(ServerState& state, Exchange& exchange) {
    const bool anthropic = !exchange.request.field("anthropic-version").empty();
    for (const std::string& name : state.config.served_model_names)
        if (name == exchange.parameter) return json_answer(model_json(state, name, anthropic));
    return error_answer(anthropic ? ErrorShape::kAnthropic : ErrorShape::kOpenAi,
                        api_error(404,
                                  "not_found_error",
                                  "there is no model '" + exchange.parameter.substr(0, 100) + "'",
                                  "model_not_found"));
}

Answer handle_count_tokens(ServerState& state, Exchange& exchange) {
    ApiError error;
    const std::optional<Json> body = read_body(state, exchange.request.body, &error);
    if (!body) return error_answer(ErrorShape::kAnthropic, error);
    auto prepared = prepare_conversation(state, recipe::Protocol::kMessages, *body, false, &error);
    if (!prepared) return error_answer(ErrorShape::kAnthropic, error);
    return with_pictures(
        state,
        exchange,
        ErrorShape::kAnthropic,
        false,
        std::move(*prepared),
        [](Exchange&, PreparedConversation& ready) {
            return json_answer(
                Json::object({{"input_tokens", static_cast<int64_t>(ready.expanded_ids.size())}}));
        });
}

Answer handle_tokenize(ServerState& state, Exchange& exchange) {
    ApiError error;
    std::optional<Json> body = read_body(state, exchange.request.body, &error);
    if (!body) return error_answer(ErrorShape::kOpenAi, error);
    return refusing(ErrorShape::kOpenAi, [&] {
        const Tokenizer& tokenizer = state.backend()->tokenizer();
        const Fields fields(*body, "");
        const bool strings = fields.boolean("return_token_strs").value_or(false);
        if (body->find("messages") != nullptr) {
            if (!fields.has("model")) body->set("model", state.config.served_model_names.front());
            auto prepared = prepare_conversation(
                state, recipe::Protocol::kChatCompletions, *body, false, &error);
            if (!prepared) return error_answer(ErrorShape::kOpenAi, error);
            return with_pictures(state,
                                 exchange,
                                 ErrorShape::kOpenAi,
                                 false,
                                 std::move(*prepared),
                                 [&state, strings](Exchange&, PreparedConversation& ready) {
                                     return tokens_answer(state, ready.expanded_ids, strings);
                                 });
        }
        const std::string text = fields.required_string("prompt");
        if (static_cast<int64_t>(text.size()) > state.config.limits.prompt_text_bytes)
            recipe::refuse("prompt has " + std::to_string(text.size()) +
                               " bytes of text, expected at most " +
                               std::to_string(state.config.limits.prompt_text_bytes),
                           "prompt");
        std::vector<int32_t> ids = tokenizer.encode(text);
        const int32_t bos = tokenizer.bos_id();
        if (fields.boolean("add_special_tokens").value_or(true) && bos >= 0 &&
            (ids.empty() || ids[0] != bos))
            ids.insert(ids.begin(), bos);
        return tokens_answer(state, ids, strings);
    });
}

Answer handle_detokenize(ServerState& state, Exchange& exchange) {
    ApiError error;
    const std::optional<Json> body = read_body(state, exchange.request.body, &error);
    if (!body) return error_answer(ErrorShape::kOpenAi, error);
    return refusing(ErrorShape::kOpenAi, [&] {
        const Tokenizer& tokenizer = state.backend()->tokenizer();
        const Fields fields(*body, "");
        const std::vector<Json>* tokens = fields.array("tokens");
        if (tokens == nullptr) recipe::refuse("tokens is missing, expected a list", "tokens");
        std::vector<int32_t> ids;
        for (size_t i = 0; i < tokens->size(); ++i) {
            const std::optional<int64_t> id = (*tokens)[i].as_int64();
            if (!id || *id < 0 || *id >= tokenizer.vocab_size())
                recipe::refuse(recipe::indexed("tokens", i) + ": expected an id from 0 to " +
                                   std::to_string(tokenizer.vocab_size() - 1),
                               "tokens");
            ids.push_back(static_cast<int32_t>(*id));
        }
        return json_answer(Json::object({{"prompt", tokenizer.decode(ids).value()}}));
    });
}

Answer handle_cancel(ServerState& state, Exchange& exchange) {
    if (!state.live.cancel(exchange.parameter, exchange.caller.tenant)) {
        return error_answer(
            ErrorShape::kOpenAi,
            api_error(404,
                      "not_found_error",
                      "no open request '" + exchange.parameter.substr(0, 100) + "'"));
    }
    return json_answer(Json::object({{"id", exchange.parameter}, {"cancelled", true}}));
}

}  // namespace deepinfer::server
