#include "deepinfer/recipe.h"
#include "recipe/json_value.h"

namespace deepinfer::recipe {

namespace {

Message text_message(Role role, std::string text) {
    Message message;
    message.role = role;
    message.content.push_back({std::move(text), std::nullopt});
    return message;
}

}  // namespace

Message Message::system(std::string text) {
    return text_message(Role::kSystem, std::move(text));
}
Message Message::user(std::string text) {
    return text_message(Role::kUser, std::move(text));
}
Message Message::assistant(std::string text, std::optional<std::string> reasoning) {
    Message message = text_message(Role::kAssistant, std::move(text));
    message.reasoning = std::move(reasoning);
    return message;
}

std::optional<Effort> Effort::from_word(std::string_view word) {
    struct Row {
        std::string_view word;
        int value;
        const char* name;
    };
    static constexpr Row kRows[] = {{"none", 0, "none"},
                                    {"minimal", 50, "low"},
                                    {"low", 50, "low"},
                                    {"medium", 75, "high"},
                                    {"high", 75, "high"},
                                    {"xhigh", 75, "xhigh"},
                                    {"max", 100, "max"},
                                    {"ultra", 100, "max"}};
    for (const Row& row : kRows)
        if (row.word == word) return Effort{row.value, row.name};
    return std::nullopt;
}

int num_images(const Conversation& conversation) {
    int count = 0;
    for (const Message& message : conversation.messages)
        for (const ContentBlock& block : message.content)
            if (block.image) ++count;
    return count;
}

ParsingOptions parsing_options(const Conversation& conversation) {
    ParsingOptions options;
    options.tools = tools_are_shown(conversation);
    options.json = conversation.response_format == ResponseFormat::kJsonObject;
    for (const ToolDefinition& tool : conversation.tools) {
        const std::string& schema =
            tool.client_parameters.empty() ? tool.parameters : tool.client_parameters;
        options.parameters.emplace(tool.name, schema);
    }
    options.start = conversation.thinking ? ParserStart::kReasoning : ParserStart::kContent;
    const Message* last = conversation.messages.empty() ? nullptr : &conversation.messages.back();
    if (last != nullptr && last->role == Role::kAssistant && last->open && conversation.thinking) {
        bool has_text = !last->tool_calls.empty();
        for (const ContentBlock& block : last->content) has_text = has_text || !block.text.empty();
        const bool has_reasoning = !last->reasoning.value_or("").empty();
        options.start = has_text        ? ParserStart::kContentContinued
                        : has_reasoning ? ParserStart::kReasoningContinued
                                        : ParserStart::kReasoning;
    }
    // A forced call is written into the prompt only without thinking (prompt spec 3.6).
    if (conversation.tool_choice == ToolChoice::kRequired && options.tools &&
        !conversation.thinking)
        options.start = ParserStart::kCalls;
    return options;
}

}  // namespace deepinfer::recipe
