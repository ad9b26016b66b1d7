#include <algorithm>

#include "deepinfer/recipe_constraint.h"
#include "recipe/json_value.h"

namespace deepinfer::recipe {
namespace {

using Type = StructuredOutputArgs::Type;

// The dress of calls (prompt spec 5.4). The spelling of a marker means its token in structural
// tags.
constexpr std::string_view kBlockBegin = "<｜DSML｜ calls>\n";
constexpr std::string_view kBlockEnd = "</｜DSML｜ calls>";
constexpr std::string_view kInvokeEnd = "</｜DSML｜ invoke>\n";

std::string member(const char* name, std::string_view text) {
    return "\"" + std::string(name) + "\":" + json_quote(text);
}

bool is_strict(const ToolDefinition& tool) {
    return tool.strict.value_or(false);
}

std::string schema_format(const std::string& schema, const char* style) {
    return R"({"type":"json_schema","style":")" + std::string(style) + R"(","json_schema":)" +
           schema + "}";
}

/// One call of one tool. Arguments of a tool that is not strict are any object.
std::string invoke_format(const ToolDefinition& tool) {
    const bool enforced = is_strict(tool) && !tool.client_parameters.empty();
    const std::string schema = enforced ? tool.client_parameters : R"({"type":"object"})";
    return "{\"type\":\"tag\"," +
           member("begin", "<｜DSML｜ invoke name=\"" + tool.name + "\">\n") +
           ",\"content\":" + schema_format(schema, "deepseek_v4_1_xml") + "," +
           member("end", kInvokeEnd) + "}";
}

/// A block of calls. `begin`: what of it the prompt has not written yet.
std::string block_format(const Conversation& c, std::string_view begin, bool parallel) {
    std::string tools;
    for (const ToolDefinition& tool : c.tools)
        tools += (tools.empty() ? "" : ",") + invoke_format(tool);
    std::string calls = R"({"type":"or","elements":[)" + tools + "]}";
    if (parallel) calls = R"({"type":"plus","content":)" + calls + "}";
    return "{\"type\":\"tag\"," + member("begin", begin) + ",\"content\":" + calls + "," +
           member("end", kBlockEnd) + "}";
}

std::string format_of(const Conversation& c) {
    switch (c.response_format) {
        case ResponseFormat::kJsonObject:
            return schema_format(R"({"type":"object"})", "json");
        case ResponseFormat::kJsonSchema:
            return schema_format(c.response_schema, "json");
        case ResponseFormat::kRegex:
            return R"({"type":"regex",)" + member("pattern", c.response_regex) + "}";
        case ResponseFormat::kText:
            break;
    }
    return "";
}

StructuredOutputArgs tag(const std::string& format, bool strict) {
    StructuredOutputArgs args = StructuredOutputArgs::of(
        Type::kStructuralTag, R"({"type":"structural_tag","format":)" + format + "}");
    args.strict = strict;
    return args;
}

StructuredOutputArgs format_alone(const Conversation& c) {
    StructuredOutputArgs args;
    switch (c.response_format) {
        case ResponseFormat::kJsonObject:
            args.type = Type::kJsonObject;
            break;
        case ResponseFormat::kJsonSchema:
            args = StructuredOutputArgs::of(Type::kJson, c.response_schema);
            args.strict = c.response_strict;
            break;
        case ResponseFormat::kRegex:
            args = StructuredOutputArgs::of(Type::kRegex, c.response_regex);
            break;
        case ResponseFormat::kText:
            break;
    }
    return args;
}

}  // namespace

StructuredOutputArgs output_constraint(const Conversation& c, bool must_call, bool parallel) {
    const bool tools = tools_are_shown(c) && !c.tools.empty();
    const bool written =
        c.tool_choice == ToolChoice::kRequired;  // the prompt ends inside the block
    if (tools && (must_call || written)) {
        const std::string begin = written && !c.thinking ? "" : "\n\n" + std::string(kBlockBegin);
        return tag(block_format(c, begin, parallel), true);
    }
    const bool strict_tools = tools && std::any_of(c.tools.begin(), c.tools.end(), is_strict);
    const std::string format = format_of(c);
    if (!format.empty()) {
        if (!tools) return format_alone(c);
        const std::string block = block_format(c, "\n\n" + std::string(kBlockBegin), parallel);
        return tag(R"({"type":"or","elements":[)" + format + "," + block + "]}",
                   c.response_strict || c.response_format != ResponseFormat::kJsonSchema);
    }
    if (!strict_tools) return {};
    return tag(
        R"({"type":"triggered_tags","triggers":["<｜DSML｜"],"stop_after_first":true,"tags":[)" +
            block_format(c, kBlockBegin, parallel) + "]}",
        true);
}

Result<StructuredOutputArgs> output_constraint(const ConvertedRequest& request) {
    StructuredOutputArgs implied = output_constraint(
        request.conversation, request.must_call, request.parsing.parallel_tool_calls);
    const StructuredOutputArgs& guided = request.sampling.so_args;
    if (guided.empty()) return implied;
    if (!implied.empty()) {
        return Status(
            StatusCode::kInvalidArgument,
            "structured_outputs or guided_* together with response_format, strict tools or a "
            "required tool: only one constraint at a time");
    }
    return guided;
}

}  // namespace deepinfer::recipe
