// The recipe: conversation -> prompt text, model output -> reasoning, content and tool calls.
//
// This is the library's text side without HTTP and without the engine. A Conversation is what every
// protocol is converted to (recipe_protocol.h); encode_prompt() renders it in the V4.1 prompt
// format; StreamParser splits what the model writes, byte by byte, into what clients see.
//
//   recipe::Conversation c;
//   c.messages.push_back(recipe::Message::user("Hello"));
//   PromptText prompt = recipe::encode_prompt(c);
//   Result<std::vector<int32_t>> ids = recipe::prompt_ids(tokenizer, prompt);
//   ...
//   recipe::StreamParser parser(recipe::parsing_options(c));
//   for (each decoded piece) { parser.push(piece, &deltas); show(deltas); }
//   parser.finish(recipe::FinishReason::kStop, &deltas);
//
// Nothing here throws. Objects are plain values; one StreamParser belongs to one answer and is used
// by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/tokenizer.h"

namespace deepinfer::recipe {

// ------------------------------------------------------------------ conversation

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

/// Where the pixels of an image come from. Fetching and decoding are the vision part's work.
struct ImageSource {
    enum class Kind { kUrl, kDataUrl };
    Kind kind = Kind::kUrl;
    std::string url;              ///< "https://…" or "data:image/png;base64,…"
    std::string detail = "high";  ///< low, high, original or auto
};

/// Text, or one image in its place among the texts.
struct ContentBlock {
    std::string text;                  ///< empty for an image
    std::optional<ImageSource> image;  ///< set: this block is an image
};

struct ToolCall {
    std::string id;
    std::string name;
    std::string arguments;  ///< JSON text as the client or the model wrote it; may be broken
};

/// A declared tool. JSON fields are texts in the prompt's spelling (Python's json.dumps).
struct ToolDefinition {
    std::string name;
    std::optional<std::string> description;
    std::string parameters = "{}";  ///< JSON Schema shown in the prompt
    std::string definition;         ///< the client's whole function object, for profile `model`
    std::string
        client_parameters;  ///< the client's own schema, for constrained decoding; may be empty
    std::optional<bool> strict;
    bool defer_loading = false;  ///< left out of the list until a system message brings it
};

struct Message {
    Role role = Role::kUser;
    std::vector<ContentBlock> content;  ///< joined by a blank line in the prompt
    std::optional<std::string> reasoning;
    std::vector<ToolCall> tool_calls;         ///< assistant only
    bool open = false;                        ///< assistant only: the answer continues this turn
    std::optional<std::string> tool_call_id;  ///< tool only
    std::vector<ToolDefinition> tools;        ///< system only: tools that become known here

    static Message system(std::string text);
    static Message user(std::string text);
    static Message assistant(std::string text, std::optional<std::string> reasoning = std::nullopt);
};

enum class ToolChoice { kAuto, kNone, kRequired };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema, kRegex };

/// Effort words of the protocols as numbers: low 50, high and xhigh 75, max 100 (prompt spec 3.2).
struct Effort {
    int value = 75;             ///< 1..100, written into the prompt
    std::string word = "high";  ///< low, high, xhigh, max; empty when the client gave a number

    /// none, minimal, low, medium, high, xhigh, max, ultra; nullopt for another word. `none` has
    /// value 0 and switches thinking off.
    static std::optional<Effort> from_word(std::string_view word);
    static Effort from_number(int value) { return {value, ""}; }
};

struct Conversation {
    std::vector<Message> messages;
    bool thinking = true;
    Effort effort;
    std::vector<ToolDefinition> tools;
    ToolChoice tool_choice = ToolChoice::kAuto;
    ResponseFormat response_format = ResponseFormat::kText;
    std::string response_schema;  ///< JSON text, with kJsonSchema
    bool response_strict =
        false;                   ///< every keyword of it is to be enforced, or the request refused
    std::string response_regex;  ///< with kRegex
};

// ------------------------------------------------------------------ prompt

enum class Profile {
    kApi,    ///< what DeepSeek's service sends (default)
    kModel,  ///< the model repository's own encoder
};

struct EncodeOptions {
    Profile profile = Profile::kApi;
    /// Numbers of histories in the spelling of deepseek-recipe 0.2.0: integers beyond 64 bits and
    /// -0 become floats (off: digits intact, as Python writes them).
    bool compat = false;
    bool generation_prompt = true;  ///< end with the header of the answer
};

/// Renders the conversation. Nothing is validated: odd shapes are rendered. The ranges that the
/// template itself wrote as special tokens (and the placeholders of real images) are flagged, so a
/// client's text that spells such a token stays text. In assistant turns the grounding tokens are
/// flagged too: the model wrote them.
PromptText encode_prompt(const Conversation& conversation, const EncodeOptions& options = {});

/// Ids of the prompt. Of the flagged ranges only the grounding tokens of an assistant's history
/// ("<｜ref｜>" and its kin) may be missing in a vocabulary; they are text then.
Result<std::vector<int32_t>> prompt_ids(const Tokenizer& tokenizer,
                                        const PromptText& prompt,
                                        size_t most = Tokenizer::kAllIds);

/// Number of image blocks in messages whose images are rendered.
int num_images(const Conversation& conversation);

/// The images in the order of their placeholders in encode_prompt(conversation, options): tool
/// results are sorted there. Pointers into `conversation`.
std::vector<const ImageSource*> prompt_images(const Conversation& conversation,
                                              const EncodeOptions& options = {});

/// The spelling of the image placeholder, one per image.
inline constexpr std::string_view kImageToken = "<｜deepseek_image｜>";

/// Tools are in the prompt: declared, and tool_choice is not `none` (prompt spec 3.1).
bool tools_are_shown(const Conversation& conversation);

// ------------------------------------------------------------------ output

enum class ParserStart { kContent, kReasoning, kReasoningContinued, kContentContinued, kCalls };

struct ParsingOptions {
    ParserStart start = ParserStart::kContent;
    bool tools = true;  ///< recognise tool calls
    /// Calls may begin in reasoning (a model that forgot </think>). False where calls have a
    /// constraint, which begins behind it: markup in front is reasoning like any other.
    bool calls_in_reasoning = true;
    bool json = false;                ///< JSON mode: text around the JSON becomes one blank
    std::vector<std::string> stop;    ///< stop sequences; empty ones are ignored
    bool parallel_tool_calls = true;  ///< false: the answer ends with its first call
    bool compat = false;              ///< the bare state machine, without the repairs of spec 5.3
    bool strict_arguments = true;  ///< check non-string values (held up to 64 KiB) before sending
    /// Parameter schemas by tool name (JSON text): types of parameters whose tag lost its type.
    std::map<std::string, std::string> parameters;
};

/// How an answer to this conversation is to be read.
ParsingOptions parsing_options(const Conversation& conversation);

enum class FinishReason {
    kStop,
    kLength,
    kContentFilter,
    kToolCalls,    ///< result only: stop, and a call was made
    kEndOfStream,  ///< the backend ended without a reason; reported as stop
};

/// "stop", "length", "content_filter", "tool_calls".
const char* finish_reason_name(FinishReason reason);

/// One piece of the answer; each has one kind of text.
struct Delta {
    enum class Kind { kReasoning, kContent, kCall, kArguments };
    Kind kind = Kind::kContent;
    int call_idx = 0;  ///< kCall, kArguments: 0, 1, …
    std::string text;  ///< kCall: the tool's name, complete; else a piece to append
};

/// What the parser met that a well-behaved model does not write.
struct ParserCounters {
    int64_t num_invalid_markers = 0;     ///< stray </think>, stray tool tags, text after the calls
    int64_t num_undeclared_calls = 0;    ///< names missing in ParsingOptions::parameters (if any)
    int64_t num_repaired_arguments = 0;  ///< values or calls changed so that the JSON parses
    int64_t num_incomplete_calls = 0;    ///< calls whose body could not be read
};

/// Splits model output into deltas, wherever its pieces are cut (also inside a character: invalid
/// UTF-8 becomes U+FFFD). Withholds at most a possible marker, the newlines before one, a possible
/// stop sequence, and JSON values to be checked.
class StreamParser {
  public:
    explicit StreamParser(ParsingOptions options);
    ~StreamParser();
    StreamParser(StreamParser&&) noexcept;
    StreamParser& operator=(StreamParser&&) noexcept;

    /// Reads decoded text (special tokens kept, EOS left out). Appends to `out`; neighbours of one
    /// kind within one call are joined. Ignored once finished().
    void push(std::string_view bytes, std::vector<Delta>* out);

    /// The output has ended. Releases what was withheld. Only the first call counts.
    void finish(FinishReason reason, std::vector<Delta>* out);

    /// A stop sequence (or the end of the only allowed call) ended the answer: stop generating.
    bool finished() const;

    /// Valid once finished() or after finish().
    FinishReason finish_reason() const;
    /// The stop sequence that ended the answer.
    const std::optional<std::string>& stop_sequence() const;
    /// Reading reasoning now: tokens that begin here count as reasoning tokens.
    bool in_reasoning() const;
    int num_calls() const;
    const ParserCounters& counters() const;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::recipe
