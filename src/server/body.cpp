// Request bodies within the limits.
#include "server/api.h"

namespace deepinfer::server {
namespace {

using recipe::Json;

std::string over(const std::string& what, size_t is, int64_t limit) {
    return what + " has " + std::to_string(is) + ", expected at most " + std::to_string(limit);
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
    json_limits.string_bytes = static_cast<size_t>(limits.json_string_bytes);
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
