// The JSON Lines doors: one request line in, one answer line out; every answer carries the id.
#include "recipe/conversation_json.h"
#include "recipe/convert.h"
#include "recipe/utf8_stream.h"

namespace deepinfer::recipe {

namespace {

constexpr size_t kLineDepth = 160;  // a body inside a line, and what its own limit refuses

Json error_json(const ApiError& error) {
    Json inner =
        Json::object({{"status", error.status}, {"type", error.type}, {"message", error.message}});
    if (!error.param.empty()) inner.set("param", error.param);
    if (!error.code.empty()) inner.set("code", error.code);
    return inner;
}

std::string refused(Json id, const ApiError& error) {
    Json out = Json::object({{"id", std::move(id)}});
    out.set("error", error_json(error));
    return dump_python(out);
}

ApiError api_error(int status, const char* type, std::string message) {
    ApiError error;
    error.status = status;
    error.type = type;
    error.message = valid_utf8(message);
    return error;
}

/// Parses the line and runs `answer(line, &out)`, whose members follow the id.
template <typename Answer>
std::string answer_line(std::string_view text, Answer answer) {
    Json id;
    try {
        JsonLimits limits;
        limits.depth = kLineDepth;
        const Result<Json> line = parse_json(text, limits);
        if (!line.ok())
            return refused(Json(),
                           api_error(400,
                                     "invalid_request_error",
                                     "the line is no JSON: " + line.status().message()));
        if (!line.value().is_object())
            return refused(Json(),
                           api_error(400,
                                     "invalid_request_error",
                                     std::string("the line is ") + json_kind(line.value()) +
                                         ", expected an object"));
        if (const Json* given = line.value().find("id")) id = *given;
        Json out = Json::object({{"id", id}});
        answer(line.value(), &out);
        return dump_python(out);
    } catch (const Refusal& refusal) {
        return refused(std::move(id), refusal.error());
    } catch (const std::exception& e) {
        return refused(std::move(id), api_error(500, "internal_error", e.what()));
    }
}

const char* start_name(ParserStart start) {
    switch (start) {
        case ParserStart::kReasoning:
            return "reasoning";
        case ParserStart::kReasoningContinued:
            return "reasoning_continued";
        case ParserStart::kContentContinued:
            return "content_continued";
        case ParserStart::kCalls:
            return "calls";
        case ParserStart::kContent:
            break;
    }
    return "content";
}

ParserStart read_start(const Fields& line) {
    const std::string name = line.string("start").value_or("content");
    for (const ParserStart start : {ParserStart::kContent,
                                    ParserStart::kReasoning,
                                    ParserStart::kReasoningContinued,
                                    ParserStart::kContentContinued,
                                    ParserStart::kCalls})
        if (name == start_name(start)) return start;
    refuse("start is '" + name.substr(0, 60) +
               "', expected content, reasoning, reasoning_continued, content_continued or calls",
           "start");
}

FinishReason read_finish(const Fields& line) {
    const Json* value = line.json().find("finish");
    if (value == nullptr) return FinishReason::kStop;
    if (value->is_null()) return FinishReason::kEndOfStream;
    for (const FinishReason reason :
         {FinishReason::kStop, FinishReason::kLength, FinishReason::kContentFilter})
        if (value->is_string() && value->as_string() == finish_reason_name(reason)) return reason;
    refuse("finish is " + dump_python(*value).substr(0, 60) +
               ", expected stop, length, content_filter or null",
           "finish");
}

// ------------------------------------------------------------------ encode

Json sampling_json(const ConvertedRequest& request) {
    const RequestSampling& s = request.sampling;
    Json out = Json::object({{"temperature", s.temperature}, {"top_p", s.top_p}});
    if (s.max_tokens) out.set("max_tokens", *s.max_tokens);
    if (s.seed) out.set("seed", *s.seed);
    if (s.logprobs) out.set("logprobs", true);
    if (s.top_logprobs) out.set("top_logprobs", *s.top_logprobs);
    if (request.compat) return out;
    if (s.presence_penalty != 0) out.set("presence_penalty", s.presence_penalty);
    if (s.frequency_penalty != 0) out.set("frequency_penalty", s.frequency_penalty);
    if (s.repetition_penalty != 1) out.set("repetition_penalty", s.repetition_penalty);
    if (s.min_p != 0) out.set("min_p", s.min_p);
    if (s.top_k != 0) out.set("top_k", s.top_k);
    if (s.min_tokens != 0) out.set("min_tokens", s.min_tokens);
    if (s.n != 1) out.set("n", s.n);
    if (s.ignore_eos) out.set("ignore_eos", true);
    if (!s.stop_token_ids.empty()) {
        Json ids = Json::array();
        for (const int64_t id : s.stop_token_ids) ids.push_back(id);
        out.set("stop_token_ids", std::move(ids));
    }
    if (!s.logit_bias.empty()) {
        Json bias = Json::object();
        for (const auto& entry : s.logit_bias) bias.set(std::to_string(entry.first), entry.second);
        out.set("logit_bias", std::move(bias));
    }
    return out;
}

Json parsing_json(const ParsingOptions& parsing) {
    Json stop = Json::array();
    for (const std::string& text : parsing.stop) stop.push_back(text);
    Json out = Json::object(
        {{"start", start_name(parsing.start)}, {"tools", parsing.tools}, {"json", parsing.json}});
    out.set("stop", std::move(stop));
    if (!parsing.calls_in_reasoning) out.set("calls_in_reasoning", false);
    return out;
}

ConvertedRequest converted(const Fields& line, const ConvertOptions& options) {
    const std::string name = line.required_string("protocol");
    const std::optional<Protocol> protocol = protocol_from_name(name);
    if (!protocol)
        refuse("protocol is '" + name.substr(0, 60) +
                   "', expected chat_completions, messages, responses or conversation",
               "protocol");
    ConvertResult result;
    if (const auto text = line.string("body_text")) {
        result = convert_request(*protocol, *text, options);
    } else {
        const Json* body = line.json().find("body");
        if (body == nullptr) refuse("body is missing", "body");
        if (!options.compat && line.json().has_duplicate_keys())
            refuse("the line has an object with a key twice");
        result = convert_body(*protocol, *body, options);
    }
    if (!result.request) throw Refusal(std::move(result.error));
    return *std::move(result.request);
}

void encode(const Tokenizer& tokenizer, const Json& json, Json* out) {
    const Fields line(json, "");
    const std::string op = line.string("op").value_or("encode");
    if (op != "encode") refuse("op is '" + op.substr(0, 60) + "', expected encode", "op");
    EncodeOptions encode_options;
    encode_options.compat = line.boolean("compat").value_or(false);
    const std::string profile = line.string("profile").value_or("api");
    if (profile != "api" && profile != "model")
        refuse("profile is '" + profile.substr(0, 60) + "', expected api or model", "profile");
    if (profile == "model") encode_options.profile = Profile::kModel;
    const std::string special = line.string("special_in_content").value_or("plain");
    if (special != "plain" && special != "parse")
        refuse("special_in_content is '" + special.substr(0, 60) + "', expected plain or parse",
               "special_in_content");

    ConvertOptions options;
    options.compat = encode_options.compat;
    options.special_in_content_parse = special == "parse" && !options.compat;
    std::optional<ConvertedRequest> request;
    Conversation conversation;
    if (line.string("protocol").value_or("") == "conversation") {
        const Json* body = line.json().find("body");
        Json parsed;
        if (const auto text = line.string("body_text")) {
            Result<Json> result = parse_json(*text);
            if (!result.ok())
                refuse("the body is no JSON: " + result.status().message(), "body_text");
            parsed = std::move(result).value();
            body = &parsed;
        }
        if (body == nullptr) refuse("body is missing", "body");
        conversation = read_conversation(Fields(*body, ""), options.compat);
    } else {
        request = converted(line, options);
        conversation = request->conversation;
    }

    const PromptText prompt = encode_prompt(conversation, encode_options);
    std::vector<int32_t> ids;
    if (special == "parse") {
        ids = tokenizer.encode(prompt.text, SpecialTokens::kParse);
    } else {
        Result<std::vector<int32_t>> result = prompt_ids(tokenizer, prompt);
        if (!result.ok())
            refuse("the tokenizer does not fit the prompt format: " + result.status().message());
        ids = std::move(result).value();
    }
    out->set("text", prompt.text);
    Json list = Json::array();
    list.items().reserve(ids.size());
    for (const int32_t id : ids) list.push_back(id);
    out->set("ids", std::move(list));
    out->set("images", num_images(conversation));
    if (!request) return;
    out->set("conversation", conversation_json(conversation));
    out->set("sampling", sampling_json(*request));
    out->set("parsing", parsing_json(request->parsing));
    out->set("stream", request->stream);
}

// ------------------------------------------------------------------ parse

std::string unhex(const Json& value, const std::string& place) {
    const auto digit = [](char c) -> int {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        if (c >= 'A' && c <= 'F') return c - 'A' + 10;
        return -1;
    };
    if (!value.is_string() || value.as_string().size() % 2 != 0)
        refuse(place + " is no hex string", place);
    const std::string& text = value.as_string();
    std::string out;
    for (size_t i = 0; i < text.size(); i += 2) {
        const int high = digit(text[i]);
        const int low = digit(text[i + 1]);
        if (high < 0 || low < 0) refuse(place + " is no hex string", place);
        out.push_back(static_cast<char>(high * 16 + low));
    }
    return out;
}

const Tokenizer& need(const Tokenizer* tokenizer) {
    if (tokenizer == nullptr) refuse("a tokenizer is needed for tokens (give --model)", "tokens");
    return *tokenizer;
}

/// Bytes of the tokens' texts, one entry per token.
std::vector<std::string> token_texts(const Tokenizer& tokenizer,
                                     const Json& list,
                                     const std::string& place) {
    if (!list.is_array())
        refuse(place + " is " + json_kind(list) + ", expected a list of token ids", place);
    std::vector<std::string> out;
    for (const Json& item : list.items()) {
        const std::optional<int64_t> id = item.as_int64();
        if (!id || *id < 0 || *id > INT32_MAX || !tokenizer.contains(static_cast<int32_t>(*id)))
            refuse(place + " holds " + dump_python(item).substr(0, 40) + ", expected ids below " +
                       std::to_string(tokenizer.vocab_size()),
                   place);
        out.emplace_back(tokenizer.token_bytes(static_cast<int32_t>(*id)));
    }
    return out;
}

/// How deepseek-recipe makes text of tokens: it waits while the text ends in U+FFFD, and what waits
/// at the end is lost. Under compat only; the parser's own rule for bytes does neither.
class CompatDecoder {
  public:
    explicit CompatDecoder(bool compat) : compat_(compat) {}
    std::string push(std::string_view bytes) {
        if (!compat_) return std::string(bytes);
        waiting_.append(bytes);
        std::string text;
        Utf8Stream decoder;
        decoder.push(waiting_, &text);
        decoder.finish(&text);
        const bool broken =
            text.size() >= 3 && text.compare(text.size() - 3, 3, "\xEF\xBF\xBD") == 0;
        if (broken) return {};
        waiting_.clear();
        return text;
    }

  private:
    const bool compat_;
    std::string waiting_;
};

/// The output in pieces, as `chunks`, `tokens` or `bytes` has it.
std::vector<std::string> read_pieces(const Fields& line, const Tokenizer* tokenizer, bool compat) {
    std::vector<std::string> pieces;
    if (const std::vector<Json>* chunks = line.array("chunks")) {
        for (size_t i = 0; i < chunks->size(); ++i) {
            const std::string place = indexed("chunks", i);
            if (!(*chunks)[i].is_string())
                refuse(place + " is " + json_kind((*chunks)[i]) + ", expected a string", place);
            pieces.push_back((*chunks)[i].as_string());
        }
    } else if (const std::vector<Json>* tokens = line.array("tokens")) {
        CompatDecoder decoder(compat);
        for (size_t i = 0; i < tokens->size(); ++i) {
            std::string piece;
            for (const std::string& text :
                 token_texts(need(tokenizer), (*tokens)[i], indexed("tokens", i)))
                piece += decoder.push(text);
            pieces.push_back(std::move(piece));
        }
    } else if (const std::vector<Json>* bytes = line.array("bytes")) {
        for (size_t i = 0; i < bytes->size(); ++i)
            pieces.push_back(unhex((*bytes)[i], indexed("bytes", i)));
    } else {
        refuse("one of chunks, tokens and bytes is needed", "chunks");
    }
    return pieces;
}

Json delta_json(const Delta& d) {
    switch (d.kind) {
        case Delta::Kind::kReasoning:
            return Json::array({"reasoning", d.text});
        case Delta::Kind::kContent:
            return Json::array({"content", d.text});
        case Delta::Kind::kCall:
            return Json::array({"call", d.call_idx, d.text});
        case Delta::Kind::kArguments:
            break;
    }
    return Json::array({"arguments", d.call_idx, d.text});
}

Json deltas_json(const std::vector<Delta>& deltas) {
    Json out = Json::array();
    for (const Delta& d : deltas) out.push_back(delta_json(d));
    return out;
}

void append_merged(const std::vector<Delta>& deltas, std::vector<Delta>* events) {
    for (const Delta& d : deltas) {
        const bool joins = !events->empty() && d.kind != Delta::Kind::kCall &&
                           events->back().kind == d.kind && events->back().call_idx == d.call_idx;
        if (joins) {
            events->back().text += d.text;
        } else {
            events->push_back(d);
        }
    }
}

void parse(const Tokenizer* tokenizer, const Fields& line, Json* out) {
    ParsingOptions options;
    options.start = read_start(line);
    options.tools = line.boolean("tools").value_or(true);
    options.calls_in_reasoning = line.boolean("calls_in_reasoning").value_or(true);
    options.json = line.boolean("json").value_or(false);
    options.compat = line.boolean("compat").value_or(false);
    options.parallel_tool_calls = line.boolean("parallel_tool_calls").value_or(true);
    options.strict_arguments = line.boolean("strict_arguments").value_or(true);
    if (const std::vector<Json>* stop = line.array("stop")) {
        for (const Json& text : *stop) {
            if (!text.is_string())
                refuse(std::string("stop holds ") + json_kind(text) + ", expected strings", "stop");
            options.stop.push_back(text.as_string());
        }
    }
    if (const std::optional<Fields> parameters = line.object("parameters"))
        for (const Json::Member& member : parameters->json().members())
            options.parameters[member.first] = dump_python(member.second);
    const FinishReason finish = read_finish(line);
    const bool compat = options.compat;

    StreamParser parser(std::move(options));
    std::vector<Delta> events;
    Json deltas = Json::array();
    Json finished_at;
    int64_t chunk_idx = 0;
    for (const std::string& piece : read_pieces(line, tokenizer, compat)) {
        std::vector<Delta> said;
        parser.push(piece, &said);
        deltas.push_back(deltas_json(said));
        append_merged(said, &events);
        if (parser.finished()) {
            finished_at = chunk_idx;
            break;
        }
        ++chunk_idx;
    }
    std::vector<Delta> rest;
    parser.finish(finish, &rest);
    deltas.push_back(deltas_json(rest));
    append_merged(rest, &events);

    std::string reasoning;
    std::string content;
    Json calls = Json::array();
    for (const Delta& d : events) {
        if (d.kind == Delta::Kind::kReasoning) reasoning += d.text;
        if (d.kind == Delta::Kind::kContent) content += d.text;
        if (d.kind == Delta::Kind::kCall)
            calls.push_back(Json::object({{"name", d.text}, {"arguments", ""}}));
        if (d.kind == Delta::Kind::kArguments) {
            Json& call = calls.items().back();
            call.set("arguments", call.find("arguments")->as_string() + d.text);
        }
    }
    out->set("events", deltas_json(events));
    out->set("deltas", std::move(deltas));
    out->set("reasoning", std::move(reasoning));
    out->set("content", std::move(content));
    out->set("tool_calls", std::move(calls));
    out->set("finish_reason", finish_reason_name(parser.finish_reason()));
    out->set("finished_at", std::move(finished_at));
}

void respond(const Tokenizer& tokenizer, const Fields& line, Json* out) {
    ConvertOptions options;
    options.compat = line.boolean("compat").value_or(false);
    const ConvertedRequest request = converted(line, options);
    ResponseContext context;
    context.response_id = line.required_string("response_id");
    context.model = request.model;
    context.system_fingerprint = line.string("system_fingerprint").value_or("");
    if (const std::optional<Fields> usage = line.object("usage")) {
        context.prompt_tokens = usage->integer_in("prompt_tokens", 0, INT64_MAX).value_or(0);
        context.cached_tokens =
            usage->integer_in("cached_tokens", 0, context.prompt_tokens).value_or(0);
    }
    const std::vector<Json>* tokens = line.array("tokens");
    if (tokens == nullptr) refuse("tokens is missing, expected lists of token ids", "tokens");
    const FinishReason finish = read_finish(line);

    const std::unique_ptr<Responder> responder = make_responder(request, std::move(context));
    std::vector<StreamEvent> events = responder->start();
    const auto append = [&events](std::vector<StreamEvent> more) {
        for (StreamEvent& event : more) events.push_back(std::move(event));
    };
    CompatDecoder decoder(options.compat);
    for (size_t i = 0; i < tokens->size() && !responder->finished(); ++i)
        for (const std::string& text : token_texts(tokenizer, (*tokens)[i], indexed("tokens", i)))
            append(responder->push(decoder.push(text), 1));
    append(responder->finish(finish));

    Json list = Json::array();
    for (StreamEvent& event : events) list.push_back(Json::raw(std::move(event.data)));
    out->set("events", std::move(list));
    out->set("response", Json::raw(responder->response()));
}

}  // namespace

std::string encode_json_line(const Tokenizer& tokenizer, std::string_view line) {
    return answer_line(line, [&](const Json& json, Json* out) { encode(tokenizer, json, out); });
}

std::string parse_json_line(const Tokenizer* tokenizer, std::string_view line) {
    return answer_line(line, [&](const Json& json, Json* out) {
        const Fields fields(json, "");
        const std::string op = fields.string("op").value_or("parse");
        if (op == "parse") {
            parse(tokenizer, fields, out);
        } else if (op == "respond") {
            respond(need(tokenizer), fields, out);
        } else {
            refuse("op is '" + op.substr(0, 60) + "', expected parse or respond", "op");
        }
    });
}

}  // namespace deepinfer::recipe
