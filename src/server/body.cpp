// Request bodies within the limits.
#include <algorithm>

#include "server/api.h"

namespace deepinfer::server {
namespace {

using recipe::Json;

std::string over(const std::string& what, size_t is, int64_t limit) {
    return what + " has " + std::to_string(is) + ", expected at most " + std::to_string(limit);
}

/// The first limit that a value exceeds, as a sentence. Depth is bounded by the parser. The text
/// of a picture (a data: URL; `base64`: the member `data` of an object with a media type) may be as
/// long as the largest picture makes it.
std::string check_value(const Json& value, const ServerLimits& limits, bool base64 = false) {
    switch (value.type()) {
        case Json::Type::kString: {
            const std::string& text = value.as_string();
            const bool picture = base64 || text.rfind("data:image/", 0) == 0;
            const int64_t most =
                picture ? std::max(limits.json_string_bytes, limits.image_bytes / 3 * 4 + 256)
                        : limits.json_string_bytes;
            if (static_cast<int64_t>(text.size()) > most)
                return over("a string's length in bytes", text.size(), most);
            break;
        }
        case Json::Type::kArray:
            for (const Json& item : value.items())
                if (std::string fault = check_value(item, limits); !fault.empty()) return fault;
            break;
        case Json::Type::kObject:
            if (static_cast<int64_t>(value.members().size()) > limits.json_keys)
                return over("an object's number of keys", value.members().size(), limits.json_keys);
            for (const Json::Member& member : value.members())
                if (std::string fault =
                        check_value(member.second,
                                    limits,
                                    member.first == "data" && value.find("media_type") != nullptr);
                    !fault.empty())
                    return fault;
            break;
        default:
            break;
    }
    return {};
}

bool check_length(const Json& body, const char* field, int64_t limit, recipe::ApiError* error) {
    const Json* list = body.find(field);
    if (list == nullptr || !list->is_array() || static_cast<int64_t>(list->items().size()) <= limit)
        return true;
    *error = bad_request(
        over(std::string(field) + ": the number of entries", list->items().size(), limit), field);
    return false;
}

}  // namespace

std::optional<Json> read_body(const ServerState& state,
                              const std::string& body,
                              recipe::ApiError* error) {
    const ServerLimits& limits = state.config.limits;
    recipe::JsonLimits json_limits;
    json_limits.num_values = 1'500'000;  // a value takes some 100 bytes once parsed
    json_limits.depth = static_cast<size_t>(limits.json_depth);
    Result<Json> parsed = recipe::parse_json(body, json_limits);
    if (!parsed.ok()) {
        *error = bad_request("the request body is no JSON: " + parsed.status().message());
        return std::nullopt;
    }
    Json json = std::move(parsed).value();
    if (!json.is_object()) {
        *error = bad_request("the request body is no JSON object");
        return std::nullopt;
    }
    if (json.has_duplicate_keys() && !state.config.compat) {
        *error = bad_request("the request body has an object with a key twice");
        return std::nullopt;
    }
    if (std::string fault = check_value(json, limits); !fault.empty()) {
        *error = bad_request("the request body: " + fault);
        return std::nullopt;
    }
    if (!check_length(json, "messages", limits.messages, error) ||
        !check_length(json, "input", limits.messages, error) ||
        !check_length(json, "tools", limits.tools, error))
        return std::nullopt;
    return json;
}

}  // namespace deepinfer::server
