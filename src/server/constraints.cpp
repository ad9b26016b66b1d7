#include "server/constraints.h"

#include <algorithm>

#include "deepinfer/recipe_constraint.h"
#include "recipe/convert_common.h"
#include "server/api.h"

namespace deepinfer::server {
namespace {

using recipe::Fields;
using recipe::Protocol;
using recipe::ResponseFormat;

std::string size_fault(const std::string& what, size_t size, const ServerLimits& limits) {
    return what + " has " + std::to_string(size) + " bytes, expected at most " +
           std::to_string(limits.schema_bytes);
}

const char* format_field(Protocol protocol) {
    switch (protocol) {
        case Protocol::kResponses:
            return "text";
        case Protocol::kMessages:
            return "output_config";
        case Protocol::kChatCompletions:
            break;
    }
    return "response_format";
}

}  // namespace

bool check_constraints(const ServerLimits& limits,
                       const recipe::ConvertedRequest& request,
                       recipe::ApiError* error) {
    const recipe::Conversation& c = request.conversation;
    const std::string format = format_field(request.protocol);
    const auto too_large = [&](size_t size, const std::string& param) {
        if (static_cast<int64_t>(size) <= limits.schema_bytes) return false;
        *error = bad_request(size_fault(param, size, limits), param);
        return true;
    };
    if (too_large(c.response_schema.size(), format) || too_large(c.response_regex.size(), format))
        return false;
    for (const recipe::ToolDefinition& tool : c.tools)
        if (too_large(tool.client_parameters.size(), "tools")) return false;

    const Result<StructuredOutputArgs> constraint = recipe::output_constraint(request);
    if (!constraint.ok()) {
        *error = bad_request(constraint.status().message(), constraint_field(request));
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

StructuredOutputArgs read_completions_constraint(const Fields& body, const ServerLimits& limits) {
    using Type = StructuredOutputArgs::Type;
    StructuredOutputArgs args = recipe::read_guided(body);
    const std::optional<Fields> format = body.object("response_format");
    const std::string type = format ? format->required_string("type") : "text";
    if (type != "text" && !args.empty())
        recipe::refuse(
            "response_format together with structured_outputs or guided_*: only one "
            "constraint at a time",
            "response_format");
    if (type == "json_object") {
        args.type = Type::kJsonObject;
    } else if (type == "json_schema") {
        const std::optional<Fields> schema = format->object("json_schema");
        if (!schema) recipe::refuse("response_format.json_schema is missing", "response_format");
        const recipe::ConvertOptions options;
        recipe::Conversion conversion{options, {}};
        recipe::read_json_schema(*schema, &conversion);
        args = StructuredOutputArgs::of(Type::kJson, conversion.conversation().response_schema);
        args.strict = conversion.conversation().response_strict;
    } else if (type == "regex") {
        args = StructuredOutputArgs::of(Type::kRegex, format->required_string("regex"));
    } else if (type != "text") {
        recipe::refuse("response_format.type is '" + type.substr(0, 60) +
                           "', expected text, json_object, json_schema or regex",
                       "response_format");
    }
    if (static_cast<int64_t>(args.value.size()) > limits.schema_bytes)
        recipe::refuse(size_fault("response_format", args.value.size(), limits), "response_format");
    // A text has no reasoning in front: whatever it holds, the constraint begins with the first
    // token.
    if (!args.empty()) args.in_reasoning = true;
    return args;
}

std::string constraint_field(const recipe::ConvertedRequest& request) {
    if (!request.sampling.so_args.empty()) return "structured_outputs";
    const recipe::Conversation& c = request.conversation;
    if (c.response_format != ResponseFormat::kText) return format_field(request.protocol);
    return "tools";
}

recipe::ApiError constraint_error(const Status& error, const std::string& field) {
    constexpr std::string_view kPrefix = "so_args: ";
    Status shown(error.code(), field + ": " + error.message().substr(kPrefix.size()));
    if (error.code() != StatusCode::kResourceExhausted &&
        error.code() != StatusCode::kInvalidArgument && error.code() != StatusCode::kUnimplemented)
        return from_status(shown);
    return bad_request(shown.message(), field);
}

}  // namespace deepinfer::server
