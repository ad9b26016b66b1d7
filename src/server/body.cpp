// Request bodies within the limits.
#include <algorithm>

#include "server/api.h"

namespace deepinfer::server {
namespace {

using recipe::Json;

std::string over(const std::string& what, size_t is, int64_t limit) {
    return what + " has " + std::to_string(is) + ", expected at most " + std::to_string(limit);
}

int64_t picture_text_bytes(const ServerLimits& limits) {
    return std::max(limits.json_string_bytes, limits.image_bytes / 3 * 4 + 256);
}

/// The first string that is too long, as a sentence. The parser has bounded everything else. The
/// text of a picture (a data: URL; `base64`: the member `data` of an object with a media type) may
/// be as long as the largest picture makes it.
std::string check_strings(const Json& value, const ServerLimits& limits, bool base64 = false) {
    switch (value.type()) {
        case Json::Type::kString: {
            const std::string& text = value.as_string();
            const bool picture = base64 || text.rfind("data:image/", 0) == 0;
            const int64_t most = picture ? picture_text_bytes(limits) : limits.json_string_bytes;
            if (static_cast<int64_t>(text.size()) > most)
                return over("a string's length in bytes", text.size(), most);
            break;
        }
        case Json::Type::kArray:
            for (const Json& item : value.items())
                if (std::string fault = check_strings(item, limits); !fault.empty()) return fault;
            break;
        case Json::Type::kObject:
            for (const Json::Member& member : value.members()) {
                if (static_cast<int64_t>(member.first.size()) > limits.json_string_bytes)
                    return over(
                        "a key's length in bytes", member.first.size(), limits.json_string_bytes);
                const bool data = member.first == "data" && value.find("media_type") != nullptr;
                if (std::string fault = check_strings(member.second, limits, data); !fault.empty())
                    return fault;
            }
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
    json_limits.keys = static_cast<size_t>(limits.json_keys);
    json_limits.string_bytes = static_cast<size_t>(picture_text_bytes(limits));
    Result<Json> parsed = recipe::parse_json(body, json_limits);
    if (!parsed.ok()) {
        *error = bad_request("the request body: " + parsed.status().message());
        return std::nullopt;
    }
    Json json = std::move(parsed).value();
    if (!json.is_object()) {
        *error = bad_request("the request body is no JSON object");
        return std::nullopt;
    }
    if (const std::string fault = check_strings(json, limits); !fault.empty()) {
        *error = bad_request("the request body: " + fault);
        return std::nullopt;
    }
    if (json.has_duplicate_keys() && !state.config.compat) {
        *error = bad_request("the request body has an object with a key twice");
        return std::nullopt;
    }
    if (!check_length(json, "messages", limits.messages, error) ||
        !check_length(json, "input", limits.messages, error) ||
        !check_length(json, "tools", limits.tools, error))
        return std::nullopt;
    return json;
}

}  // namespace deepinfer::server
