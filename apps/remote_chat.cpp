#include "remote_chat.h"

#include <nlohmann/json.hpp>

#include "deepinfer/http_client.h"

namespace deepinfer::cli {
namespace {

using json = nlohmann::ordered_json;  // the order of a schema's properties is the answer's

Result<HttpCall> call_for(const RemoteOptions& remote, const std::string& route) {
    Result<HttpUrl> url = parse_http_url(remote.url);
    if (!url.ok()) return url.status();
    HttpCall call;
    call.url = std::move(url).value();
    // Both http://host:8000 and http://host:8000/v1 are how people write it.
    const bool has_v1 =
        call.url.path.size() >= 3 && call.url.path.compare(call.url.path.size() - 3, 3, "/v1") == 0;
    call.url.path += (has_v1 ? "" : "/v1") + route;
    if (!remote.api_key.empty())
        call.fields.emplace_back("authorization", "Bearer " + remote.api_key);
    call.cancel = &interrupted;
    return call;
}

Status error_of(int status, const std::string& body) {
    const json document = json::parse(body, nullptr, false);
    std::string message;
    if (document.is_object() && document.contains("error") && document["error"].is_object())
        message = document["error"].value("message", "");
    return {
        status >= 500 ? StatusCode::kUnavailable : StatusCode::kInvalidArgument,
        "the server answers " + std::to_string(status) + (message.empty() ? "" : ": " + message)};
}

/// What check_image_format() took for a picture, as a data: URL.
std::string data_url(const ImageInput& image) {
    const std::string& b = image.encoded;
    const char* type = b.rfind("\xFF\xD8", 0) == 0 ? "jpeg"
                       : b.rfind("GIF8", 0) == 0   ? "gif"
                       : b.rfind("RIFF", 0) == 0   ? "webp"
                                                   : "png";
    std::string out = std::string("data:image/") + type + ";base64,";
    constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < b.size(); i += 3) {
        const auto byte = [&](size_t k) {
            return i + k < b.size() ? static_cast<uint32_t>(static_cast<uint8_t>(b[i + k])) : 0U;
        };
        const uint32_t bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (size_t k = 0; k < 4; ++k)
            out += i + k > b.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
    }
    return out;
}

/// The constraint in the fields that servers know: OpenAI's where it has one, else vLLM's.
Status add_constraint(const StructuredOutputArgs& args, json* body) {
    using Type = StructuredOutputArgs::Type;
    if (!args.any_whitespace)
        return {StatusCode::kUnimplemented, "--any-whitespace 0 cannot be asked of a server"};
    json parsed;
    if (args.type == Type::kJson || args.type == Type::kStructuralTag) {
        parsed = json::parse(args.value, nullptr, false);
        if (parsed.is_discarded())
            return {StatusCode::kInvalidArgument, "the constraint's file is no JSON"};
    }
    switch (args.type) {
        case Type::kNone:
            break;
        case Type::kJson:
            (*body)["response_format"] = {
                {"type", "json_schema"},
                {"json_schema", {{"name", "answer"}, {"schema", parsed}, {"strict", args.strict}}}};
            break;
        case Type::kJsonObject:
            (*body)["response_format"] = {{"type", "json_object"}};
            break;
        case Type::kRegex:
            (*body)["structured_outputs"] = {{"regex", args.value}};
            break;
        case Type::kEbnf:
            (*body)["structured_outputs"] = {{"grammar", args.value}};
            break;
        case Type::kChoice:
            (*body)["structured_outputs"] = {{"choice", args.choices}};
            break;
        case Type::kStructuralTag:
            (*body)["structured_outputs"] = {{"structural_tag", parsed}};
            break;
    }
    return {};
}

Result<json> body_of(const RemoteOptions& remote,
                     const SamplingOptions& sampling,
                     const recipe::Conversation& conversation,
                     const std::vector<ImageInput>& images) {
    size_t next_image = 0;
    json messages = json::array();
    for (const recipe::Message& message : conversation.messages) {
        const char* role = message.role == recipe::Role::kSystem      ? "system"
                           : message.role == recipe::Role::kAssistant ? "assistant"
                                                                      : "user";
        std::string text;
        json parts = json::array();
        for (const recipe::ContentBlock& block : message.content) {
            text += block.text;
            if (block.image && next_image < images.size())
                parts.push_back({{"type", "image_url"},
                                 {"image_url", {{"url", data_url(images[next_image++])}}}});
        }
        // A plain string where there are no pictures: some servers know nothing else.
        json content = text;
        if (!parts.empty()) {
            parts.push_back({{"type", "text"}, {"text", text}});
            content = parts;
        }
        messages.push_back({{"role", role}, {"content", content}});
    }
    const SamplingParams defaults;
    const SamplingParams& p = sampling.params;
    json body = {{"model", remote.model}, {"messages", messages}, {"stream", true}};
    // What is not asked for is not sent: other servers refuse fields that they do not know.
    if (p.temperature != defaults.temperature) body["temperature"] = p.temperature;
    if (p.top_p != defaults.top_p) body["top_p"] = p.top_p;
    if (p.top_k != defaults.top_k) body["top_k"] = p.top_k;
    if (p.min_p != defaults.min_p) body["min_p"] = p.min_p;
    if (p.presence_penalty != 0) body["presence_penalty"] = p.presence_penalty;
    if (p.frequency_penalty != 0) body["frequency_penalty"] = p.frequency_penalty;
    if (p.repetition_penalty != 1) body["repetition_penalty"] = p.repetition_penalty;
    if (p.max_tokens) body["max_tokens"] = *p.max_tokens;
    if (p.min_tokens > 0) body["min_tokens"] = p.min_tokens;
    if (p.seq_seed) body["seed"] = *p.seq_seed;
    if (!p.stop.empty()) body["stop"] = p.stop;
    if (!p.stop_token_ids.empty()) body["stop_token_ids"] = p.stop_token_ids;
    if (p.ignore_eos) body["ignore_eos"] = true;
    if (!conversation.thinking) body["thinking"] = {{"type", "disabled"}};
    if (conversation.thinking && conversation.effort.word.empty())
        body["reasoning_effort"] = conversation.effort.value;
    if (conversation.thinking && !conversation.effort.word.empty() &&
        conversation.effort.word != "high")
        body["reasoning_effort"] = conversation.effort.word;
    DI_RETURN_IF_ERROR(add_constraint(p.so_args, &body));
    return body;
}

std::string text_of(const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Shows one event. An error that it carries, or "".
std::string show_event(std::string_view data, AnswerPrinter* printer) {
    const json event = json::parse(data, nullptr, false);
    if (!event.is_object()) return "an event is no JSON";
    if (event.contains("constraint_notes") && event["constraint_notes"].is_array()) {
        for (const json& note : event["constraint_notes"])
            if (note.is_string()) show_constraint_notes({note.get<std::string>()});
    }
    if (event.contains("error")) return text_of(event["error"], "message");
    if (!event.contains("choices") || !event["choices"].is_array() || event["choices"].empty() ||
        !event["choices"][0].contains("delta"))
        return {};
    const json& delta = event["choices"][0]["delta"];
    std::vector<recipe::Delta> deltas;
    std::string reasoning = text_of(delta, "reasoning_content");
    if (reasoning.empty()) reasoning = text_of(delta, "reasoning");
    if (!reasoning.empty()) deltas.push_back({recipe::Delta::Kind::kReasoning, 0, reasoning});
    const std::string content = text_of(delta, "content");
    if (!content.empty()) deltas.push_back({recipe::Delta::Kind::kContent, 0, content});
    printer->show(deltas);
    return {};
}

}  // namespace

Status find_remote_model(RemoteOptions* remote) {
    Result<HttpCall> call = call_for(*remote, "/models");
    if (!call.ok()) return call.status();
    if (!remote->model.empty()) return {};
    std::string body;
    call->method = "GET";
    call->timeout_ms = 15'000;
    call->on_data = [&body](int, std::string_view piece) {
        body += piece;
        return body.size() < (1 << 20);
    };
    const Result<int> status = http_call(call.value());
    if (!status.ok()) return status.status();
    if (status.value() != 200) return error_of(status.value(), body);
    const json list = json::parse(body, nullptr, false);
    const bool usable = list.is_object() && list.contains("data") && list["data"].is_array() &&
                        !list["data"].empty() && list["data"][0].is_object();
    if (usable) remote->model = text_of(list["data"][0], "id");
    if (remote->model.empty())
        return {StatusCode::kInvalidArgument, "the server lists no model; give --model-name"};
    return {};
}

Status ask_server(const RemoteOptions& remote,
                  const SamplingOptions& sampling,
                  const recipe::Conversation& conversation,
                  const std::vector<ImageInput>& images,
                  AnswerPrinter* printer) {
    Result<HttpCall> call = call_for(remote, "/chat/completions");
    if (!call.ok()) return call.status();
    Result<json> body = body_of(remote, sampling, conversation, images);
    if (!body.ok()) return body.status();
    call->body = body.value().dump(-1, ' ', false, json::error_handler_t::replace);
    std::string refused;  // the body of an answer that is no stream
    std::string fault;
    bool done = false;
    EventReader events;
    call->on_data = [&](int status, std::string_view piece) {
        if (status != 200) {
            refused += piece;
            return refused.size() < (1 << 20);
        }
        events.feed(piece, [&](std::string_view, std::string_view data) {
            done = done || data == "[DONE]";
            if (!done && fault.empty()) fault = show_event(data, printer);
            return true;
        });
        return fault.empty() && !done;
    };
    const Result<int> status = http_call(call.value());
    if (!status.ok()) return status.status();
    if (status.value() != 200) return error_of(status.value(), refused);
    if (!fault.empty()) return {StatusCode::kUnavailable, "the server says: " + fault};
    return {};
}

}  // namespace deepinfer::cli
