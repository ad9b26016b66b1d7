#include "server/constraints.h"

#include "server/api.h"

namespace deepinfer::server {

using recipe::ResponseFormat;

Status check_pictures(const recipe::Conversation& conversation) {
    if (recipe::num_images(conversation) == 0) return {};
    return {StatusCode::kUnimplemented, "this version takes no pictures"};
}

bool check_constraints(const ServerLimits& limits,
                       const recipe::ConvertedRequest& request,
                       recipe::ApiError* error) {
    const recipe::Conversation& c = request.conversation;
    const bool responses = request.protocol == recipe::Protocol::kResponses;
    const std::string format = responses ? "text" : "response_format";
    const auto too_large = [&](size_t size, const std::string& param) {
        if (static_cast<int64_t>(size) <= limits.schema_bytes) return false;
        *error = bad_request(param + " has " + std::to_string(size) + " bytes, expected at most " +
                                 std::to_string(limits.schema_bytes),
                             param);
        return true;
    };
    if (too_large(c.response_schema.size(), format) || too_large(c.response_regex.size(), format))
        return false;
    for (const recipe::ToolDefinition& tool : c.tools)
        if (too_large(tool.client_parameters.size(), "tools")) return false;

    const auto refuse = [&](const std::string& what, const std::string& param) {
        *error = bad_request(what + ": constrained output is not in this version", param);
        return false;
    };
    switch (c.response_format) {
        case ResponseFormat::kText:
            break;
        case ResponseFormat::kJsonObject:
            return refuse(format + " json_object", format);
        case ResponseFormat::kJsonSchema:
            return refuse(format + " json_schema", format);
        case ResponseFormat::kRegex:
            return refuse(format + " regex", format);
    }
    for (const recipe::ToolDefinition& tool : c.tools)
        if (tool.strict.value_or(false)) return refuse("tools with strict: true", "tools");
    if (request.must_call && c.thinking)
        return refuse("a required tool call while thinking", "tool_choice");
    return true;
}

void apply_constraints(const recipe::ConvertedRequest&, SamplingParams*) {}

}  // namespace deepinfer::server
