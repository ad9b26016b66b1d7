// What the three converters share: model names, thinking and effort, sampling limits, images,
// tools.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/fields.h"

namespace deepinfer::recipe {

/// DeepSeek's bound of an answer's length; enforced under compat (prompt spec 6).
inline constexpr int64_t kMaxOutputTokens = 393216;
inline constexpr size_t kMaxStopSequences = 16;
inline constexpr size_t kMaxTools = 128;

/// One conversion: the options, and the request that is being built.
struct Conversion {
    const ConvertOptions& options;
    ConvertedRequest request;

    bool compat() const { return options.compat; }
    JsonNumbers numbers() const { return compat() ? JsonNumbers::kCompat : JsonNumbers::kPython; }
    Conversation& conversation() { return request.conversation; }
};

/// Reads `model`; an unknown one is 404 (400 under compat).
void read_model(const Fields& body, Conversion* c);

/// Resolves explicit switch > effort > default. `thinking` is the {type, budget_tokens} object or
/// null; `effort` is the effort's value or null.
void resolve_thinking(const Json* thinking,
                      const Json* effort,
                      const std::string& thinking_path,
                      const std::string& effort_path,
                      Conversion* c);

/// temperature, top_p, stream.
void read_sampling(const Fields& body, Conversion* c);
/// `high_is_lowered`: a limit above the bound is lowered under compat instead of refused.
void read_max_tokens(const Fields& body, std::string_view key, bool high_is_lowered, Conversion* c);
/// A string or an array of strings, each non-empty.
void read_stop(const Fields& body, std::string_view key, bool string_allowed, Conversion* c);

/// One tool as declared. `schema_key` names its schema field.
struct DeclaredTool {
    ToolDefinition tool;
    const Json* schema = nullptr;
    std::string path;
};
DeclaredTool read_tool(const Fields& function,
                       const char* schema_key,
                       bool takes_strict,
                       Conversion* c);
/// Name rules; the index in the message is that of the list.
void check_tool_name(const std::string& name, const std::string& path);

struct ToolChoiceRequest {
    ToolChoice choice = ToolChoice::kAuto;
    std::optional<std::string> name;  ///< only this tool, required
};
/// Checks the tools and applies the choice: sets tools and tool_choice of the conversation.
void apply_tools(std::vector<DeclaredTool> tools,
                 const ToolChoiceRequest& choice,
                 const std::string& choice_path,
                 Conversion* c);

/// vLLM's spellings of a constraint: structured_outputs {json, regex, choice, grammar, json_object,
/// structural_tag} and guided_json, guided_regex, guided_choice, guided_grammar. At most one.
StructuredOutputArgs read_guided(const Fields& body);
/// `json_schema` of a response format; `format` holds schema and strict.
void read_json_schema(const Fields& format, Conversion* c);
/// json_object asks for the word "json" in some text.
void require_word_json(const std::string& param, Conversion* c);

/// "https://…" or "data:image/png;base64,…"; `data_only` refuses URLs.
ImageSource image_source(const std::string& url,
                         const std::optional<std::string>& detail,
                         bool data_only,
                         const std::string& path);
/// low, high, original, auto; nullopt stays.
std::optional<std::string> read_detail(const Fields& image);
bool is_base64(std::string_view text);

/// Texts joined by blank lines into one block, as the prompt would show them, images kept apart.
void append_text(Message* message, std::string text);

/// Without thinking, reasoning in the history is dropped; with it, missing reasoning becomes "".
/// Also sets the parsing options and, under compat, the service's sampling rules.
void complete(Conversion* c);

void convert_chat_completions(const Json& body, Conversion* c);
void convert_messages(const Json& body, Conversion* c);
void convert_responses(const Json& body, Conversion* c);

}  // namespace deepinfer::recipe
