// The V4.1 prompt format, in both profiles. Wire format: every byte counts.
//
// PromptWriter keeps the flagged ranges; Renderer walks the messages. Constants with markup in them
// go through markup(), which flags the special tokens inside; client text goes through text().
#include <algorithm>
#include <span>
#include <unordered_map>

#include "deepinfer/recipe.h"
#include "recipe/json_value.h"
#include "recipe/special_tokens.h"

namespace deepinfer::recipe {

namespace {

constexpr std::string_view kToolsHead = R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";
constexpr std::string_view kResponseFormatHead =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
constexpr std::string_view kUpdatedToolsHead = "\n\n### Updated Tool Schemas\n\n";
constexpr std::string_view kCallsBegin = "\n\n<｜DSML｜ calls>\n";

class PromptWriter {
  public:
    void special(std::string_view token) {
        prompt_.specials.push_back({prompt_.text.size(), prompt_.text.size() + token.size()});
        prompt_.text.append(token);
    }
    void text(std::string_view text) { prompt_.text.append(text); }
    /// Template text: the special tokens that it spells are tokens.
    void markup(std::string_view text) {
        while (!text.empty()) {
            size_t at = text.size();
            std::string_view token;
            for (const std::string_view candidate : {kDsml, kThinkBegin, kThinkEnd}) {
                const size_t found = text.find(candidate);
                if (found < at) at = found, token = candidate;
            }
            prompt_.text.append(text, 0, at);
            if (token.empty()) return;
            special(token);
            text.remove_prefix(at + token.size());
        }
    }
    /// An assistant's own text: the grounding tokens are what the model wrote, so they stay tokens.
    void model_text(std::string_view text) {
        size_t from = 0;
        while (true) {
            const size_t at = text.find("<｜", from);
            if (at == std::string_view::npos) break;
            std::string_view token;
            for (const std::string_view candidate : kGroundingTokens)
                if (text.substr(at, candidate.size()) == candidate) token = candidate;
            if (token.empty()) {
                from = at + 1;
                continue;
            }
            prompt_.text.append(text, 0, at);
            special(token);
            text.remove_prefix(at + token.size());
            from = 0;
        }
        prompt_.text.append(text);
    }
    void reserve(size_t num_bytes) { prompt_.text.reserve(num_bytes); }
    PromptText take() { return std::move(prompt_); }

  private:
    PromptText prompt_;
};

/// Turns of the prompt: user and tool messages in a row are one user turn.
struct Turn {
    Role role = Role::kUser;            // never kTool
    std::vector<const Message*> parts;  // one message; several in a user turn
    bool only_tool_results = false;     // of a user turn
};

std::vector<Turn> make_turns(const std::vector<Message>& messages, bool join_reminders) {
    std::vector<Turn> turns;
    for (const Message& message : messages) {
        const bool in_user_turn = message.role == Role::kUser || message.role == Role::kTool;
        const Role role = in_user_turn ? Role::kUser : message.role;
        const bool same = !turns.empty() && turns.back().role == role;
        if (same && role == Role::kLatestReminder && join_reminders)
            continue;  // the first one counts
        if (!same || !in_user_turn) turns.push_back({role, {}, in_user_turn});
        turns.back().parts.push_back(&message);
        if (message.role == Role::kUser) turns.back().only_tool_results = false;
    }
    return turns;
}

class Renderer {
  public:
    Renderer(const Conversation& conversation, const EncodeOptions& options)
        : conversation_(conversation), options_(options) {}

    PromptText render() {
        size_t num_bytes = 4096;  // the texts, and some markup around each
        for (const Message& message : conversation_.messages) {
            num_bytes += 128 + message.reasoning.value_or("").size();
            for (const ContentBlock& block : message.content) num_bytes += block.text.size() + 8;
            for (const ToolCall& call : message.tool_calls)
                num_bytes += call.arguments.size() + 256;
        }
        out_.reserve(num_bytes);
        out_.special(kBos);
        const bool tools = tools_are_shown(conversation_);
        const bool format = conversation_.response_format == ResponseFormat::kJsonObject ||
                            conversation_.response_format == ResponseFormat::kJsonSchema;
        turns_ = make_turns(conversation_.messages, options_.profile == Profile::kApi);
        first_is_system_ = !turns_.empty() && turns_.front().role == Role::kSystem;
        const bool has_head = first_is_system_ || tools || format;
        head_is_a_message_ = has_head;
        if (has_head || (conversation_.thinking && !turns_.empty())) {
            out_.special(kSystemToken);
            if (conversation_.thinking) effort_line();
            if (first_is_system_) content(*turns_.front().parts.front());
            if (tools) tool_text();
            if (format) response_format();
            if (first_is_system_) updated_tools(*turns_.front().parts.front());
        }
        find_last_user();
        for (size_t i = 0; i < turns_.size(); ++i) turn(i);
        end();
        return out_.take();
    }

    /// After render(): the images in the order of their placeholders.
    std::vector<const ImageSource*> take_images() { return std::move(images_); }

  private:
    bool api() const { return options_.profile == Profile::kApi; }

    void effort_line() {
        out_.text("Reasoning Effort: ");
        out_.text(std::to_string(conversation_.effort.value));
        out_.text(" (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    }

    void content(const Message& message) {
        bool first = true;
        for (const ContentBlock& block : message.content) {
            if (!first) out_.text("\n\n");
            first = false;
            if (block.image) {
                out_.special(kImageToken);
                images_.push_back(&*block.image);
            } else if (message.role == Role::kAssistant) {
                out_.model_text(block.text);
            } else {
                out_.text(block.text);
            }
        }
    }

    void schema_line(const ToolDefinition& tool) {
        if (!api() && !tool.definition.empty()) {
            out_.text(tool.definition);
            return;
        }
        out_.text("{\"name\": " + json_quote(tool.name));
        out_.text(", \"description\": " + json_quote(tool.description.value_or("")));
        out_.text(", \"parameters\": ");
        out_.text(tool.parameters);
        out_.text("}");
    }

    void tool_text() {
        out_.text("\n\n");
        out_.markup(kToolsHead);
        bool first = true;
        for (const ToolDefinition& tool : conversation_.tools) {
            if (tool.defer_loading) continue;
            if (!first) out_.text("\n");
            first = false;
            schema_line(tool);
        }
        out_.text(kToolsTail);
    }

    void response_format() {
        out_.text(kResponseFormatHead);
        if (conversation_.response_format == ResponseFormat::kJsonObject) {
            out_.text("{\"type\": \"json_object\"}");
        } else {
            out_.text(conversation_.response_schema);
        }
    }

    void updated_tools(const Message& message) {
        if (message.tools.empty()) return;
        out_.text(kUpdatedToolsHead);
        for (size_t i = 0; i < message.tools.size(); ++i) {
            if (i > 0) out_.text("\n");
            schema_line(message.tools[i]);
        }
    }

    /// Profile `model` counts from the last turn that asks: a user's text or a system message
    /// within the conversation; a turn of tool results alone asks nothing.
    void find_last_user() {
        last_user_ = -1;
        for (size_t i = 0; i < turns_.size(); ++i) {
            const Turn& t = turns_[i];
            if ((t.role == Role::kUser && !t.only_tool_results) ||
                (t.role == Role::kSystem && i > 0))
                last_user_ = static_cast<ptrdiff_t>(i);
        }
    }

    void turn(size_t i) {
        const Turn& t = turns_[i];
        switch (t.role) {
            case Role::kSystem:
                if (i == 0) break;  // rendered with the head
                out_.special(kSystemToken);
                content(*t.parts.front());
                updated_tools(*t.parts.front());
                break;
            case Role::kUser:
            case Role::kTool:
                user_turn(t);
                break;
            case Role::kLatestReminder:
                out_.special(kReminderToken);
                content(*t.parts.front());
                break;
            case Role::kAssistant:
                assistant(i, *t.parts.front());
                break;
        }
        if (!api()) model_header(i);
    }

    void user_turn(const Turn& t) {
        std::vector<const Message*> parts = t.parts;
        sort_results(&parts);
        out_.special(kUserToken);
        for (size_t k = 0; k < parts.size(); ++k) {
            if (k > 0) out_.text("\n\n");
            const bool tool = parts[k]->role == Role::kTool;
            if (tool) out_.text("<tool_result>");
            content(*parts[k]);
            if (tool) out_.text("</tool_result>");
        }
    }

    /// Results take the order of the calls that they answer; texts between them keep their places.
    void sort_results(std::vector<const Message*>* parts) const {
        if (call_rank_.empty()) return;
        std::vector<const Message*> results;
        for (const Message* m : *parts)
            if (m->role == Role::kTool) results.push_back(m);
        const auto rank = [this](const Message* m) -> size_t {
            if (!m->tool_call_id) return 0;
            const auto found = call_rank_.find(*m->tool_call_id);
            return found == call_rank_.end() ? 0 : found->second;
        };
        std::stable_sort(results.begin(), results.end(), [&](const Message* a, const Message* b) {
            return rank(a) < rank(b);
        });
        size_t next = 0;
        for (const Message*& m : *parts)
            if (m->role == Role::kTool) m = results[next++];
    }

    bool keeps_reasoning(size_t i, const Message& message) const {
        if (!conversation_.thinking) return false;
        if (tools_are_shown(conversation_)) return true;
        if (api()) return message.open && (i > 0 || head_is_a_message_);
        return static_cast<ptrdiff_t>(i) > last_user_;
    }

    void assistant(size_t i, const Message& message) {
        if (!message.tool_calls.empty()) {
            call_rank_.clear();
            for (size_t k = 0; k < message.tool_calls.size(); ++k)
                call_rank_.emplace(message.tool_calls[k].id, k);  // the first of equal ids counts
        }
        const bool has_text = std::any_of(message.content.begin(),
                                          message.content.end(),
                                          [](const ContentBlock& b) { return !b.text.empty(); });
        const bool keep = keeps_reasoning(i, message);
        // An open turn without content stops inside its reasoning.
        const bool closed = !message.open || has_text || !message.tool_calls.empty();
        if (api()) {
            out_.special(kAssistantToken);
            if (keep) out_.special(kThinkBegin);
        }
        if (keep) out_.model_text(message.reasoning.value_or(""));
        if (keep ? closed : api()) out_.special(kThinkEnd);
        content(message);
        if (!message.tool_calls.empty()) calls(message.tool_calls);
        if (!message.open) out_.special(kEos);
    }

    void calls(const std::vector<ToolCall>& calls) {
        out_.markup(kCallsBegin);
        for (size_t k = 0; k < calls.size(); ++k) {
            if (k > 0) out_.text("\n");
            out_.markup("<｜DSML｜ invoke name=\"");
            out_.text(calls[k].name);
            out_.text("\">\n");
            arguments(calls[k].arguments);
            out_.markup("\n</｜DSML｜ invoke>");
        }
        out_.markup("\n</｜DSML｜ calls>");
    }

    void parameter(std::string_view name, std::string_view value, bool is_string) {
        out_.markup("<｜DSML｜ parameter name=\"");
        out_.text(name);
        out_.text(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
        out_.text(value);
        out_.markup("</｜DSML｜ parameter>");
    }

    void arguments(const std::string& text) {
        const Result<Json> parsed = parse_json(text);
        if (!parsed.ok() || !parsed.value().is_object()) {
            parameter("arguments", text, true);
            return;
        }
        const JsonNumbers numbers = options_.compat ? JsonNumbers::kCompat : JsonNumbers::kPython;
        bool first = true;
        for (const Json::Member& member : parsed.value().members()) {
            if (!first) out_.text("\n");
            first = false;
            const bool is_string = member.second.is_string();
            parameter(member.first,
                      is_string ? member.second.as_string() : dump_python(member.second, numbers),
                      is_string);
        }
    }

    /// Profile `model`: the header of an answer follows the turn before it, and only a turn that
    /// asks; a reminder stands behind the header.
    void model_header(size_t i) {
        const Turn& t = turns_[i];
        const bool asks = t.role == Role::kUser || (t.role == Role::kSystem && i > 0);
        const bool last = i + 1 == turns_.size();
        if (!asks || (last && !options_.generation_prompt)) return;
        if (!last && turns_[i + 1].role != Role::kAssistant &&
            turns_[i + 1].role != Role::kLatestReminder)
            return;
        out_.special(kAssistantToken);
        const bool think = conversation_.thinking && (tools_are_shown(conversation_) ||
                                                      static_cast<ptrdiff_t>(i) >= last_user_);
        out_.special(think ? kThinkBegin : kThinkEnd);
        if (last) forced_calls();
    }

    void end() {
        if (!api() || !options_.generation_prompt) return;
        const bool continues = !turns_.empty() && turns_.back().role == Role::kAssistant &&
                               turns_.back().parts.front()->open;
        if (!continues) {
            out_.special(kAssistantToken);
            out_.special(conversation_.thinking ? kThinkBegin : kThinkEnd);
        }
        forced_calls();
    }

    void forced_calls() {
        if (conversation_.tool_choice == ToolChoice::kRequired && tools_are_shown(conversation_))
            out_.markup(kCallsBegin);
    }

    const Conversation& conversation_;
    const EncodeOptions options_;
    PromptWriter out_;
    std::vector<const ImageSource*> images_;
    std::vector<Turn> turns_;
    bool first_is_system_ = false;
    bool head_is_a_message_ = false;  // the prompt begins with a system segment of its own
    ptrdiff_t last_user_ = -1;
    std::unordered_map<std::string, size_t> call_rank_;  // of the last message with calls
};

}  // namespace

PromptText encode_prompt(const Conversation& conversation, const EncodeOptions& options) {
    return Renderer(conversation, options).render();
}

std::vector<const ImageSource*> prompt_images(const Conversation& conversation,
                                              const EncodeOptions& options) {
    if (num_images(conversation) == 0) return {};
    Renderer renderer(conversation, options);
    renderer.render();
    return renderer.take_images();
}

Result<std::vector<int32_t>> prompt_ids(const Tokenizer& tokenizer,
                                        const PromptText& prompt,
                                        size_t most) {
    PromptText fitting = prompt;
    const auto lacks = [&](const SpecialRange& range) {
        const std::string_view token =
            std::string_view(prompt.text).substr(range.begin, range.end - range.begin);
        const bool grounding =
            std::find(std::begin(kGroundingTokens), std::end(kGroundingTokens), token) !=
            std::end(kGroundingTokens);
        return grounding && tokenizer.id_of(token) < 0;
    };
    fitting.specials.erase(std::remove_if(fitting.specials.begin(), fitting.specials.end(), lacks),
                           fitting.specials.end());
    return tokenizer.encode_prompt(fitting, most);
}

bool tools_are_shown(const Conversation& conversation) {
    return !conversation.tools.empty() && conversation.tool_choice != ToolChoice::kNone;
}

}  // namespace deepinfer::recipe
