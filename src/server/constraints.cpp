#include "server/constraints.h"

#include "deepinfer/recipe_constraint.h"
#include "server/api.h"

namespace deepinfer::server {

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

    const Result<StructuredOutputArgs> constraint = recipe::output_constraint(request);
    if (!constraint.ok()) {
        *error = bad_request(constraint.status().message(), format);
        return false;
    }
    if (static_cast<int64_t>(constraint.value().value.size()) > 4 * limits.schema_bytes) {
        *error = bad_request("the constraints of tools and format together are too large", format);
        return false;
    }
    return true;
}

void apply_constraints(const recipe::ConvertedRequest& request, SamplingParams* sampling) {
    Result<StructuredOutputArgs> constraint = recipe::output_constraint(request);
    if (constraint.ok()) sampling->so_args = std::move(constraint).value();
}

}  // namespace deepinfer::server
