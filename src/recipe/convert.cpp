// The border of conversion: bytes in, a request or an ApiError out.
#include "recipe/convert.h"

#include "recipe/utf8_stream.h"

namespace deepinfer::recipe {

namespace {

constexpr size_t kBodyDepth = 64;         // of a request body (online spec 5.4)
constexpr size_t kCompatBodyDepth = 128;  // what deepseek-recipe reads

size_t depth_of(const Json& value) {
    size_t deepest = 0;
    for (const Json& item : value.items()) deepest = std::max(deepest, depth_of(item));
    for (const Json::Member& member : value.members())
        deepest = std::max(deepest, depth_of(member.second));
    return deepest + (value.is_array() || value.is_object() ? 1 : 0);
}

ApiError internal_error(const std::exception& e) {
    ApiError error;
    error.status = 500;
    error.type = "internal_error";
    error.message = std::string("conversion failed: ") + e.what();
    return error;
}

}  // namespace

ConvertResult convert_body(Protocol protocol, const Json& body, const ConvertOptions& options) {
    ConvertResult result;
    try {
        const size_t depth = options.compat ? kCompatBodyDepth : kBodyDepth;
        if (depth_of(body) > depth)
            refuse("the request body is nested deeper than " + std::to_string(depth));
        if (!options.compat && body.has_duplicate_keys())
            refuse("the request body has an object with a key twice");
        Conversion conversion{options, {}};
        conversion.request.protocol = protocol;
        switch (protocol) {
            case Protocol::kChatCompletions:
                convert_chat_completions(body, &conversion);
                break;
            case Protocol::kMessages:
                convert_messages(body, &conversion);
                break;
            case Protocol::kResponses:
                convert_responses(body, &conversion);
                break;
        }
        result.request = std::move(conversion.request);
    } catch (const Refusal& refusal) {
        result.error = refusal.error();
    } catch (const std::exception& e) {
        result.error = internal_error(e);
    }
    return result;
}

ConvertResult convert_request(Protocol protocol,
                              std::string_view body,
                              const ConvertOptions& options) {
    JsonLimits limits;
    limits.depth = options.compat ? kCompatBodyDepth : kBodyDepth;
    Result<Json> json = parse_json(body, limits);
    if (json.ok()) return convert_body(protocol, json.value(), options);
    ConvertResult result;
    result.error.message = "the request body is no JSON: " + valid_utf8(json.status().message());
    return result;
}

std::optional<Protocol> protocol_from_name(std::string_view name) {
    if (name == "chat_completions") return Protocol::kChatCompletions;
    if (name == "messages") return Protocol::kMessages;
    if (name == "responses") return Protocol::kResponses;
    return std::nullopt;
}

std::string error_body(Protocol protocol, const ApiError& error) {
    if (protocol == Protocol::kMessages) {
        Json inner = Json::object({{"type", error.type}, {"message", error.message}});
        return dump_python(Json::object({{"type", "error"}, {"error", std::move(inner)}}));
    }
    const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
    Json inner = Json::object({{"message", error.message}, {"type", error.type}});
    inner.set("param", or_null(error.param));
    inner.set("code", or_null(error.code));
    return dump_python(Json::object({{"error", std::move(inner)}}));
}

}  // namespace deepinfer::recipe
