// Messages bodies -> conversation (prompt spec 7.4).
#include <unordered_map>
#include <unordered_set>

#include "recipe/convert_common.h"

namespace deepinfer::recipe {

namespace {

/// "messages.2.content.0" in the protocol's own spelling of places.
std::string place(size_t message) {
    return "messages." + std::to_string(message);
}
std::string place(size_t message, size_t block) {
    return place(message) + ".content." + std::to_string(block);
}

bool is_server_block(const std::string& type) {
    return type == "server_tool_use" || type == "web_search_tool_result";
}

class MessagesConverter {
  public:
    MessagesConverter(const Json& json, Conversion* c) : body_(json, ""), c_(*c) {}

    void run() {
        read_model(body_, &c_);
        const std::optional<Fields> output = body_.object("output_config");
        resolve_thinking(body_.get("thinking"),
                         output ? output->get("effort") : nullptr,
                         "thinking",
                         "output_config.effort",
                         &c_);
        read_sampling(body_, &c_);
        read_max_tokens(body_, "max_tokens", true, &c_);
        read_stop(body_, "stop_sequences", false, &c_);
        if (!c_.compat())
            c_.request.sampling.top_k =
                std::max<int64_t>(0, body_.integer_in("top_k", -1, INT32_MAX).value_or(0));
        if (const auto metadata = body_.object("metadata"))
            c_.request.user = metadata->string("user_id").value_or("");
        tools();
        if (output && !c_.compat()) output_format(*output);
        system();
        messages();
        complete(&c_);
    }

  private:
    std::vector<Message>& out() { return c_.conversation().messages; }

    void tools() {
        std::vector<DeclaredTool> tools;
        if (const std::vector<Json>* list = body_.array("tools")) {
            for (size_t i = 0; i < list->size(); ++i) {
                const Fields entry((*list)[i], indexed("tools", i) + ".");
                const Json* type = entry.json().find("type");
                if (type != nullptr && !type->is_string()) entry.required_string("type");
                const std::string kind = type == nullptr ? "custom" : entry.required_string("type");
                if (type != nullptr && (kind != "custom" || c_.compat())) {
                    if (c_.options.ignore_web_search && kind.compare(0, 10, "web_search") == 0)
                        continue;
                    refuse(entry.path("type") + " is '" + kind.substr(0, 60) +
                               "': server tools are not supported",
                           entry.path("type"));
                }
                tools.push_back(read_tool(entry, "input_schema", !c_.compat(), &c_));
                tools.back().tool.defer_loading = entry.boolean("defer_loading").value_or(false);
                check_tool_name(tools.back().tool.name, entry.path("name"));
                if (tools.back().schema == nullptr)
                    refuse(entry.path("input_schema") + " is missing, expected a JSON Schema",
                           entry.path("input_schema"));
            }
        }
        bool any_ready = tools.empty();
        for (const DeclaredTool& tool : tools) {
            declared_.emplace(tool.tool.name, tool.tool);
            any_ready = any_ready || !tool.tool.defer_loading;
        }
        if (!any_ready)
            refuse("tools: all are deferred (defer_loading), expected at least one that is not",
                   "tools");

        ToolChoiceRequest choice;
        if (const std::optional<Fields> value = body_.object("tool_choice")) {
            const std::string type = value->required_string("type");
            if (type == "tool") {
                choice.name = value->required_string("name");
            } else if (type == "none") {
                choice.choice = ToolChoice::kNone;
                references_shown_ = false;
            } else if (type == "any") {
                if (!c_.compat()) choice.choice = ToolChoice::kRequired;
            } else if (type != "auto") {
                refuse("tool_choice.type is '" + type.substr(0, 60) +
                           "', expected auto, any, tool or none",
                       "tool_choice");
            }
            const bool sequential = value->boolean("disable_parallel_tool_use").value_or(false);
            c_.request.parsing.parallel_tool_calls = !sequential;
        }
        apply_tools(std::move(tools), choice, "tool_choice", &c_);
    }

    /// output_config.format: every keyword of its schema is enforced, or the request refused.
    void output_format(const Fields& output) {
        const std::optional<Fields> format = output.object("format");
        if (!format) return;
        const std::string type = format->required_string("type");
        if (type != "json_schema")
            refuse(
                "output_config.format.type is '" + type.substr(0, 60) + "', expected json_schema",
                "output_config.format");
        read_json_schema(*format, &c_);
        c_.conversation().response_strict = true;
    }

    // ---------------------------------------------------------------- messages

    void system() {
        const Json* value = body_.get("system");
        if (value == nullptr) return;
        Message message;
        message.role = Role::kSystem;
        if (value->is_string()) {
            append_text(&message, value->as_string());
        } else {
            const std::vector<Json>& blocks = *body_.array("system");
            for (size_t i = 0; i < blocks.size(); ++i) {
                const Fields block(blocks[i], indexed("system", i) + ".");
                const std::string type = block.required_string("type");
                if (type != "text")
                    refuse(block.path("type") + " is '" + type.substr(0, 60) + "', expected text",
                           block.path("type"));
                append_text(&message, block.required_string("text"));
            }
        }
        out().push_back(std::move(message));
    }

    void messages() {
        const std::vector<Json>* list = body_.array("messages");
        if (list == nullptr) refuse("messages is missing, expected an array", "messages");
        if (list->empty()) refuse("messages is empty, expected at least one message", "messages");
        for (size_t i = 0; i < list->size(); ++i) {
            const Fields fields((*list)[i], indexed("messages", i) + ".");
            const std::string role = fields.required_string("role");
            const Json* content = fields.json().find("content");
            if (role != "user" && role != "assistant" && role != "system")
                refuse(fields.path("role") + " is '" + role.substr(0, 60) +
                           "', expected user, assistant or system",
                       fields.path("role"));
            if (content == nullptr)
                refuse(fields.path("content") + " is missing", fields.path("content"));
            if (!content->is_string() && !content->is_array())
                refuse(fields.path("content") + " is " + json_kind(*content) +
                           ", expected a string or a list of blocks",
                       fields.path("content"));
            if (role != "user") unanswered(i);
            if (role == "system") {
                system_message(*content, i);
            } else if (content->is_array() && content->items().empty()) {
                refuse(place(i) + ".content is empty, expected at least one block",
                       fields.path("content"));
            } else if (role == "user") {
                user(*content, i);
            } else {
                assistant(*content, i);
            }
        }
        unanswered(list->size() - 1);
    }

    /// Calls must be answered at the beginning of the very next message.
    void unanswered(size_t i) {
        for (const std::string& id : waiting_) {
            if (answered_.count(id) != 0) continue;
            std::string ids;
            for (const std::string& other : waiting_)
                if (answered_.count(other) == 0 && ids.size() < 400)
                    ids += (ids.empty() ? "" : ", ") + other;
            refuse(place(i) +
                       ": tool_use ids without a tool_result block at the beginning of the next "
                       "message: " +
                       ids,
                   "messages");
        }
        waiting_.clear();
        answered_.clear();
    }

    void system_message(const Json& content, size_t i) {
        Message message;
        message.role = Role::kSystem;
        if (content.is_string()) append_text(&message, content.as_string());
        for (size_t k = 0; k < content.items().size(); ++k) {
            const Fields block(content.items()[k], place(i, k) + ".");
            const std::string type = block.required_string("type");
            if (type == "image" && c_.compat()) {
                message.content.push_back(image(block, i));
            } else if (type == "text") {
                append_text(&message, block.required_string("text"));
            } else {
                refuse(block.path("type") + " is '" + type.substr(0, 60) + "', expected text",
                       block.path("type"));
            }
        }
        out().push_back(std::move(message));
    }

    ContentBlock image(const Fields& block, size_t i) {
        const std::optional<Fields> source = block.object("source");
        if (!source) refuse(block.path("source") + " is missing", block.path("source"));
        const std::string type = source->required_string("type");
        ContentBlock out;
        const std::string where = place(i) + ".content";
        if (type == "base64") {
            const std::string media = source->required_string("media_type");
            if (media != "image/jpeg" && media != "image/jpg" && media != "image/png" &&
                media != "image/gif" && media != "image/webp")
                refuse(source->path("media_type") + " is '" + media.substr(0, 60) +
                           "', expected image/jpeg, image/png, image/gif or image/webp",
                       source->path("media_type"));
            out.image = image_source("data:" + media + ";base64," + source->required_string("data"),
                                     std::nullopt,
                                     true,
                                     where);
        } else if (type == "url") {
            const std::string url = source->required_string("url");
            if (url.compare(0, 5, "data:") == 0)
                refuse(where + ": an image of type url needs an http(s) URL", where);
            out.image = image_source(url, std::nullopt, false, where);
        } else {
            refuse(source->path("type") + " is '" + type.substr(0, 60) +
                       "', expected base64 or url (files are not supported)",
                   source->path("type"));
        }
        return out;
    }

    std::string document(const Fields& block) {
        const std::optional<Fields> source = block.object("source");
        if (!source) refuse(block.path("source") + " is missing", block.path("source"));
        const std::optional<std::string> media = source->string("media_type");
        return "[Unsupported document type: " + media.value_or("unknown") + "]";
    }

    Message one_block(Role role, ContentBlock block) {
        Message message;
        message.role = role;
        message.content.push_back(std::move(block));
        return message;
    }

    void user(const Json& content, size_t i) {
        if (content.is_string()) {
            unanswered(i);
            out().push_back(Message::user(content.as_string()));
            return;
        }
        bool results_over = false;
        std::vector<ToolDefinition> referenced;
        for (size_t k = 0; k < content.items().size(); ++k) {
            const Fields block(content.items()[k], place(i, k) + ".");
            const std::string type = block.required_string("type");
            if (type == "tool_result") {
                tool_result(block, i, k, &referenced);
                if (results_over)
                    refuse(place(i, k) + ": tool_result blocks must come before any text or image",
                           "messages");
                continue;
            }
            if (type != "text" && type != "image" && type != "document")
                refuse(place(i, k) + " has type '" + type.substr(0, 60) +
                           "', expected text, image, document or tool_result in a user message",
                       "messages");
            if (!results_over) check_all_answered(i);
            results_over = true;
            if (type == "text") {
                out().push_back(
                    one_block(Role::kUser, {block.required_string("text"), std::nullopt}));
            } else if (type == "image") {
                out().push_back(one_block(Role::kUser, image(block, i)));
            } else {
                out().push_back(one_block(Role::kUser, {document(block), std::nullopt}));
            }
        }
        unanswered(i);
        if (referenced.empty() || !references_shown_) return;
        Message tools = Message::system("");
        tools.tools = std::move(referenced);
        out().push_back(std::move(tools));
    }

    void check_all_answered(size_t i) {
        for (const std::string& id : waiting_)
            if (answered_.count(id) == 0)
                refuse(place(i) +
                           ": tool_use id without a tool_result block before other content: " + id,
                       "messages");
    }

    void tool_result(const Fields& block,
                     size_t i,
                     size_t k,
                     std::vector<ToolDefinition>* referenced) {
        Message message;
        message.role = Role::kTool;
        message.tool_call_id = block.required_string("tool_use_id");
        block.boolean("is_error");
        const std::string& id = *message.tool_call_id;
        if (known_.count(id) == 0 || waiting_.empty())
            refuse(place(i, k) + ": tool_use_id '" + id.substr(0, 60) +
                       "' has no tool_use block in the message before",
                   "messages");
        if (!answered_.insert(id).second)
            refuse(place(i, k) + ": a second tool_result for '" + id.substr(0, 60) +
                       "', expected one each",
                   "messages");
        const Json* content = block.get("content");
        if (content != nullptr && content->is_string()) {
            append_text(&message, content->as_string());
        } else if (content != nullptr) {
            const std::vector<Json>& parts = *block.array("content");
            for (size_t p = 0; p < parts.size(); ++p) {
                const Fields part(parts[p], indexed(block.path("content"), p) + ".");
                const std::string type = part.required_string("type");
                if (type == "text") {
                    append_text(&message, part.required_string("text"));
                } else if (type == "image") {
                    message.content.push_back(image(part, i));
                } else if (type == "document") {
                    append_text(&message, document(part));
                } else if (type == "tool_reference") {
                    const std::string name = part.required_string("tool_name");
                    const auto found = declared_.find(name);
                    if (found == declared_.end())
                        refuse(place(i, k) + ": tool reference '" + name.substr(0, 140) +
                                   "' is not among the tools",
                               "messages");
                    referenced->push_back(found->second);
                    append_text(&message, name);
                } else {
                    refuse(part.path("type") + " is '" + type.substr(0, 60) +
                               "', expected text, image, document or tool_reference",
                           part.path("type"));
                }
            }
        }
        out().push_back(std::move(message));
    }

    void assistant(const Json& content, size_t i) {
        Message message;
        message.role = Role::kAssistant;
        std::string text;
        if (content.is_string()) text = content.as_string();
        bool has_text = false;
        known_.clear();
        for (size_t k = 0; k < content.items().size(); ++k) {
            const Fields block(content.items()[k], place(i, k) + ".");
            const std::string type = block.required_string("type");
            if (type == "text") {
                if (!message.tool_calls.empty())
                    refuse(place(i, k) + ": text after a tool_use block", "messages");
                const std::string part = block.required_string("text");
                if (has_text) text += "\n\n";
                text += part;
                has_text = has_text || !part.empty();
            } else if (type == "thinking") {
                const std::string part = block.required_string("thinking");
                block.string("signature");
                message.reasoning = message.reasoning ? *message.reasoning + "\n\n" + part : part;
            } else if (type == "tool_use") {
                const Json* input = block.json().find("input");
                if (input == nullptr)
                    refuse(block.path("input") + " is missing", block.path("input"));
                ToolCall call{block.required_string("id"),
                              block.required_string("name"),
                              dump_python(*input, JsonNumbers::kPython)};
                if (!known_.insert(call.id).second)
                    refuse(place(i, k) + ": tool_use id '" + call.id.substr(0, 60) +
                               "' a second time, expected distinct ids",
                           "messages");
                waiting_.push_back(call.id);
                message.tool_calls.push_back(std::move(call));
            } else if (is_server_block(type) && c_.options.ignore_web_search) {
                continue;
            } else {
                refuse(place(i, k) + " has type '" + type.substr(0, 60) +
                           "', expected text, thinking or tool_use in an assistant message",
                       "messages");
            }
        }
        append_text(&message, std::move(text));
        out().push_back(std::move(message));
    }

    const Fields body_;
    Conversion& c_;
    std::unordered_map<std::string, ToolDefinition> declared_;
    bool references_shown_ = true;
    std::vector<std::string> waiting_;       // calls of the message before
    std::unordered_set<std::string> known_;  // the same, to look up
    std::unordered_set<std::string> answered_;
};

}  // namespace

void convert_messages(const Json& body, Conversion* c) {
    MessagesConverter(body, c).run();
}

}  // namespace deepinfer::recipe
