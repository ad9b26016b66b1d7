#include "recipe/conversation_json.h"

namespace deepinfer::recipe {

namespace {

class Reader {
  public:
    explicit Reader(bool compat) : numbers_(compat ? JsonNumbers::kCompat : JsonNumbers::kPython) {}

    Conversation read(const Fields& body) {
        Conversation c;
        if (const std::vector<Json>* list = body.array("messages"))
            for (size_t i = 0; i < list->size(); ++i)
                c.messages.push_back(message(Fields((*list)[i], indexed("messages", i) + ".")));
        c.thinking = body.boolean("thinking").value_or(true);
        if (const Json* effort = body.get("reasoning_effort")) c.effort = read_effort(*effort);
        c.tools = tools(body);
        const std::string choice = body.string("tool_choice").value_or("auto");
        if (choice == "none") {
            c.tool_choice = ToolChoice::kNone;
        } else if (choice == "required") {
            c.tool_choice = ToolChoice::kRequired;
        } else if (choice != "auto") {
            refuse("tool_choice is '" + choice.substr(0, 60) + "', expected auto, none or required",
                   "tool_choice");
        }
        format(body, &c);
        return c;
    }

  private:
    static Effort read_effort(const Json& value) {
        const std::optional<int64_t> number = value.as_int64();
        if (number && *number >= 1 && *number <= 100)
            return Effort::from_number(static_cast<int>(*number));
        if (value.is_string())
            if (const auto effort = Effort::from_word(value.as_string());
                effort && effort->value > 0)
                return *effort;
        refuse("reasoning_effort is " + dump_python(value).substr(0, 60) +
                   ", expected an effort word or an integer in [1, 100]",
               "reasoning_effort");
    }

    void format(const Fields& body, Conversation* c) {
        const std::string format = body.string("response_format").value_or("text");
        if (format == "json_object") {
            c->response_format = ResponseFormat::kJsonObject;
        } else if (format != "text") {
            refuse(
                "response_format is '" + format.substr(0, 60) + "', expected text or json_object",
                "response_format");
        }
        if (const Json* schema = body.get("response_schema")) {
            c->response_format = ResponseFormat::kJsonSchema;
            c->response_schema = dump_python(*schema, numbers_);
        }
        if (const auto regex = body.string("response_regex")) {
            c->response_format = ResponseFormat::kRegex;
            c->response_regex = *regex;
        }
    }

    std::vector<ToolDefinition> tools(const Fields& owner) {
        std::vector<ToolDefinition> out;
        const std::vector<Json>* list = owner.array("tools");
        if (list == nullptr) return out;
        for (size_t i = 0; i < list->size(); ++i) {
            const Fields fields((*list)[i], indexed(owner.path("tools"), i) + ".");
            ToolDefinition tool;
            tool.name = fields.required_string("name");
            tool.description = fields.string("description");
            if (const Json* parameters = fields.json().find("parameters"))
                tool.parameters = dump_python(*parameters, numbers_);
            tool.strict = fields.boolean("strict");
            tool.defer_loading = fields.boolean("defer_loading").value_or(false);
            tool.definition = dump_python(fields.json(), numbers_);
            out.push_back(std::move(tool));
        }
        return out;
    }

    std::vector<ContentBlock> content(const Fields& fields) {
        std::vector<ContentBlock> out;
        const Json* value = fields.get("content");
        if (value == nullptr || value->is_string()) {
            out.push_back({value == nullptr ? "" : value->as_string(), std::nullopt});
            return out;
        }
        const std::vector<Json>& blocks = *fields.array("content");
        for (size_t i = 0; i < blocks.size(); ++i) {
            const Fields block(blocks[i], indexed(fields.path("content"), i) + ".");
            const std::string type = block.required_string("type");
            ContentBlock one;
            if (type == "text") {
                one.text = block.required_string("text");
            } else if (type == "image") {
                one.image.emplace();
                one.image->url = block.string("url").value_or("");
            } else {
                refuse(
                    block.path("type") + " is '" + type.substr(0, 60) + "', expected text or image",
                    block.path("type"));
            }
            out.push_back(std::move(one));
        }
        return out;
    }

    Message message(const Fields& fields) {
        Message m;
        const std::string role = fields.required_string("role");
        static const std::pair<const char*, Role> kRoles[] = {
            {"system", Role::kSystem},
            {"user", Role::kUser},
            {"assistant", Role::kAssistant},
            {"tool", Role::kTool},
            {"latest_reminder", Role::kLatestReminder}};
        bool known = false;
        for (const auto& row : kRoles) {
            if (role != row.first) continue;
            m.role = row.second;
            known = true;
        }
        if (!known)
            refuse(fields.path("role") + " is '" + role.substr(0, 60) +
                       "', expected system, user, assistant, tool or latest_reminder",
                   fields.path("role"));
        m.content = content(fields);
        m.tools = tools(fields);
        if (m.role == Role::kTool) m.tool_call_id = fields.string("tool_call_id");
        if (m.role != Role::kAssistant) return m;
        m.reasoning = fields.string("reasoning_content");
        m.open = fields.boolean("prefix").value_or(false);
        if (const std::vector<Json>* calls = fields.array("tool_calls")) {
            for (size_t i = 0; i < calls->size(); ++i) {
                const Fields call((*calls)[i], indexed(fields.path("tool_calls"), i) + ".");
                m.tool_calls.push_back({call.required_string("id"),
                                        call.required_string("name"),
                                        call.required_string("arguments")});
            }
        }
        return m;
    }

    const JsonNumbers numbers_;
};

Json tool_json(const ToolDefinition& tool) {
    Json out = Json::object({{"name", tool.name}});
    out.set("description", tool.description ? Json(*tool.description) : Json());
    out.set("parameters", Json::raw(tool.parameters));
    if (tool.strict) out.set("strict", *tool.strict);
    if (tool.defer_loading) out.set("defer_loading", true);
    return out;
}

Json tools_json(const std::vector<ToolDefinition>& tools) {
    Json out = Json::array();
    for (const ToolDefinition& tool : tools) out.push_back(tool_json(tool));
    return out;
}

Json message_json(const Message& m) {
    static constexpr const char* kRoles[] = {
        "system", "user", "assistant", "tool", "latest_reminder"};
    Json out = Json::object({{"role", kRoles[static_cast<int>(m.role)]}});
    std::string text;
    Json images = Json::array();
    for (size_t i = 0; i < m.content.size(); ++i) {
        if (i > 0) text += "\n\n";
        if (const std::optional<ImageSource>& image = m.content[i].image) {
            text += kImageToken;
            const bool is_url = image->kind == ImageSource::Kind::kUrl;
            images.push_back(
                Json::object({{"kind", is_url ? "url" : "data_url"}, {"detail", image->detail}}));
        } else {
            text += m.content[i].text;
        }
    }
    out.set("content", std::move(text));
    if (m.reasoning) out.set("reasoning_content", *m.reasoning);
    if (!m.tool_calls.empty()) {
        Json calls = Json::array();
        for (const ToolCall& call : m.tool_calls)
            calls.push_back(Json::object(
                {{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}}));
        out.set("tool_calls", std::move(calls));
    }
    if (m.open) out.set("prefix", true);
    if (m.tool_call_id) out.set("tool_call_id", *m.tool_call_id);
    if (!m.tools.empty()) out.set("tools", tools_json(m.tools));
    if (!images.items().empty()) out.set("images", std::move(images));
    return out;
}

}  // namespace

Conversation read_conversation(const Fields& body, bool compat) {
    return Reader(compat).read(body);
}

Json conversation_json(const Conversation& c) {
    static constexpr const char* kChoices[] = {"auto", "none", "required"};
    static constexpr const char* kFormats[] = {"text", "json_object", "json_schema", "regex"};
    Json messages = Json::array();
    for (const Message& m : c.messages) messages.push_back(message_json(m));
    Json out = Json::object({{"messages", std::move(messages)}, {"thinking", c.thinking}});
    if (c.thinking)
        out.set("reasoning_effort",
                c.effort.word.empty() ? Json(c.effort.value) : Json(c.effort.word));
    out.set("tools", tools_json(c.tools));
    out.set("tool_choice", kChoices[static_cast<int>(c.tool_choice)]);
    out.set("response_format", kFormats[static_cast<int>(c.response_format)]);
    if (c.response_format == ResponseFormat::kJsonSchema)
        out.set("response_schema", Json::raw(c.response_schema));
    if (c.response_format == ResponseFormat::kRegex) out.set("response_regex", c.response_regex);
    return out;
}

}  // namespace deepinfer::recipe
