// Responses bodies -> conversation (prompt spec 7.5).
#include <algorithm>
#include <set>
#include <unordered_set>

#include "recipe/convert_common.h"

namespace deepinfer::recipe {

namespace {

/// Our own words about the one text-in tool; the format itself is the client's.
constexpr std::string_view kApplyPatchDescription =
    "Edits files by a patch. The input is one text: the line \"*** Begin Patch\", then file "
    "sections, "
    "then the line \"*** End Patch\". A section begins with \"*** Add File: PATH\" (each line "
    "after it "
    "starts with +), \"*** Delete File: PATH\", or \"*** Update File: PATH\", which may be "
    "followed by "
    "\"*** Move to: NEW_PATH\". An update holds hunks: a line \"@@\" that may name the enclosing "
    "class "
    "or function, then lines that start with a space (kept), - (removed) or + (added); give three "
    "lines of context around each change, and more @@ lines where those are not unique. "
    "\"*** End of File\" marks a hunk at the end. Paths are relative.";
constexpr std::string_view kApplyPatchParameters =
    "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {\"input\": "
    "{\"type\": "
    "\"string\", \"description\": \"The whole patch, from *** Begin Patch to *** End Patch.\"}}, "
    "\"required\": [\"input\"]}";

Json or_null(const Json* value) {
    return value == nullptr ? Json() : *value;
}

class ResponsesConverter {
  public:
    ResponsesConverter(const Json& json, Conversion* c) : body_(json, ""), c_(*c) {}

    void run() {
        read_model(body_, &c_);
        reasoning();
        sampling();
        tools();
        input();
        text_format();
        echo();
        complete(&c_);
    }

  private:
    std::vector<Message>& out() { return c_.conversation().messages; }

    void reasoning() {
        const std::optional<Fields> reasoning = body_.object("reasoning");
        resolve_thinking(
            nullptr, reasoning ? reasoning->get("effort") : nullptr, "", "reasoning.effort", &c_);
        if (!reasoning) return;
        if (const auto summary = reasoning->string("summary");
            summary && *summary != "auto" && *summary != "concise" && *summary != "detailed")
            refuse("reasoning.summary is '" + summary->substr(0, 60) +
                       "', expected auto, concise or detailed",
                   "reasoning.summary");
    }

    void sampling() {
        RequestSampling& s = c_.request.sampling;
        read_sampling(body_, &c_);
        read_max_tokens(body_, "max_output_tokens", false, &c_);
        if (const auto top = body_.integer_in("top_logprobs", 0, 20)) {
            s.logprobs = true;
            s.top_logprobs = static_cast<int>(*top);
        }
        c_.request.user = body_.string("user").value_or("");
        if (c_.compat()) return;
        c_.request.store = body_.boolean("store").value_or(true);
        c_.request.parsing.parallel_tool_calls =
            body_.boolean("parallel_tool_calls").value_or(true);
        c_.request.previous_response_id = body_.string("previous_response_id").value_or("");
        if (!c_.request.previous_response_id.empty() && !c_.options.stored_responses)
            refuse(
                "previous_response_id: turns are not stored here, send the whole conversation as "
                "input",
                "previous_response_id");
    }

    // ---------------------------------------------------------------- tools

    void tools() {
        if (const std::vector<Json>* list = body_.array("tools")) {
            for (size_t i = 0; i < list->size(); ++i) {
                const Fields entry((*list)[i], indexed("tools", i) + ".");
                const std::string type = entry.required_string("type");
                if (type == "function") {
                    function(entry);
                } else if (type == "custom") {
                    custom(entry);
                } else if (type == "namespace") {
                    name_space(entry);
                } else if (type.compare(0, 10, "web_search") == 0) {
                    Json shown = Json::object({{"type", type}});
                    shown.set("search_context_size", or_null(entry.get("search_context_size")));
                    shown.set("user_location", or_null(entry.get("user_location")));
                    shown_tools_.push_back(std::move(shown));
                }
            }
        }
        apply_tools(std::move(tools_), tool_choice(), "tool_choice", &c_);
    }

    Json shown_function(const Fields& entry) {
        Json shown = Json::object({{"type", "function"}});
        for (const char* key : {"name", "description", "parameters", "strict"})
            shown.set(key, or_null(entry.get(key)));
        return shown;
    }

    void function(const Fields& entry) {
        tools_.push_back(read_tool(entry, "parameters", true, &c_));
        check_tool_name(tools_.back().tool.name, entry.path("name"));
        shown_tools_.push_back(shown_function(entry));
    }

    void custom(const Fields& entry) {
        const std::string name = entry.required_string("name");
        if (name != "apply_patch")
            refuse(entry.path("name") + " is '" + name.substr(0, 140) +
                       "': of custom tools only apply_patch is supported",
                   entry.path("name"));
        DeclaredTool declared;
        declared.path = "tools";
        declared.tool.name = name;
        declared.tool.description = std::string(kApplyPatchDescription);
        declared.tool.parameters = std::string(kApplyPatchParameters);
        c_.request.custom_tools.push_back(name);
        tools_.push_back(std::move(declared));
        shown_tools_.push_back(Json::object({{"type", "custom"}, {"name", name}}));
    }

    /// A namespace's tools become "ns::name"; two namespaces of one name get suffixes.
    void name_space(const Fields& entry) {
        const std::string space = entry.required_string("name");
        check_tool_name(space, entry.path("name"));
        const std::string head = entry.string("description").value_or("");
        const std::vector<Json>* list = entry.array("tools");
        if (list == nullptr)
            refuse(entry.path("tools") + " is missing, expected an array", entry.path("tools"));
        Json shown_list = Json::array();
        std::set<std::string> own_names;
        for (size_t k = 0; k < list->size(); ++k) {
            const Fields inner((*list)[k], indexed(entry.path("tools"), k) + ".");
            const std::string type = inner.required_string("type");
            if (type != "function")
                refuse(inner.path("type") + " is '" + type.substr(0, 60) +
                           "', expected function inside a namespace",
                       inner.path("type"));
            DeclaredTool declared = read_tool(inner, "parameters", true, &c_);
            ToolDefinition& tool = declared.tool;
            check_tool_name(tool.name, inner.path("name"));
            if (!own_names.insert(tool.name).second)
                refuse(inner.path("name") + " is '" + tool.name +
                           "' a second time, expected distinct names in a namespace",
                       inner.path("name"));
            const std::string own = tool.name;
            tool.name = unused_name(space + "::" + own);
            if (!head.empty()) tool.description = head + "\n" + tool.description.value_or("");
            c_.request.namespace_tools[tool.name] = {space, own};
            tools_.push_back(std::move(declared));
            shown_list.push_back(shown_function(inner));
        }
        Json shown = Json::object({{"type", "namespace"}, {"name", space}});
        shown.set("description", or_null(entry.get("description")));
        shown.set("tools", std::move(shown_list));
        shown_tools_.push_back(std::move(shown));
    }

    std::string unused_name(const std::string& name) {
        std::string candidate = name;
        for (int i = 1; c_.request.namespace_tools.count(candidate) != 0; ++i)
            candidate = name + "_" + std::to_string(i);
        return candidate;
    }

    ToolChoiceRequest tool_choice() {
        ToolChoiceRequest choice;
        const Json* value = body_.get("tool_choice");
        if (value == nullptr) return choice;
        if (value->is_object()) {
            const Fields named(*value, "tool_choice.");
            const std::string type = named.required_string("type");
            if (type == "function" || type == "custom") {
                choice.name = named.required_string("name");
            } else if (type != "web_search" && type != "web_search_2025_08_26") {
                refuse("tool_choice.type is '" + type.substr(0, 60) +
                           "', expected function, custom or web_search",
                       "tool_choice");
            }
        } else if (value->is_string() && value->as_string() == "none") {
            choice.choice = ToolChoice::kNone;
        } else if (value->is_string() && value->as_string() == "required") {
            choice.choice = ToolChoice::kRequired;
        } else if (!value->is_string() || value->as_string() != "auto") {
            refuse("tool_choice is " + dump_python(*value).substr(0, 60) +
                       ", expected none, auto, required or an object",
                   "tool_choice");
        }
        return choice;
    }

    // ---------------------------------------------------------------- input

    void input() {
        const std::string instructions = body_.string("instructions").value_or("");
        const Json* value = body_.get("input");
        if (value == nullptr && instructions.empty())
            refuse("input or instructions must be given", "input");
        if (!instructions.empty()) out().push_back(Message::system(instructions));
        if (value == nullptr) return;
        if (value->is_string()) {
            out().push_back(Message::user(value->as_string()));
            return;
        }
        if (!value->is_array())
            refuse(std::string("input is ") + json_kind(*value) +
                       ", expected a string or a list of items",
                   "input");
        if (value->items().empty())
            refuse("input is an empty list, expected at least one item", "input");
        for (size_t i = 0; i < value->items().size(); ++i) item(value->items()[i], i);
        end_outputs();
        close_turn(true);
    }

    void item(const Json& json, size_t i) {
        const Fields fields(json, indexed("input", i) + ".");
        const Json* type = json.find("type");
        if (type != nullptr && !type->is_string())
            refuse(fields.path("type") + " is " + json_kind(*type) + ", expected a string",
                   fields.path("type"));
        if (type == nullptr && json.find("role") == nullptr)
            refuse(indexed("input", i) + " has neither type nor role", indexed("input", i));
        const std::string kind = type == nullptr ? "message" : type->as_string();
        if (kind == "message") {
            message(fields, i);
        } else if (kind == "reasoning") {
            reasoning_item(fields);
        } else if (kind == "function_call" || kind == "custom_tool_call") {
            call(fields, kind == "custom_tool_call");
        } else if (kind == "function_call_output" || kind == "custom_tool_call_output") {
            output(fields, i);
        }
        // Items of other types (references, server tools) have no place in the prompt.
    }

    ContentBlock part(const Fields& fields, const std::string& where, bool outputs_allowed) {
        const std::string type = fields.required_string("type");
        ContentBlock block;
        if (type == "input_text" || (type == "output_text" && outputs_allowed)) {
            block.text = fields.required_string("text");
        } else if (type == "input_file") {
            block.text = "[Unsupported Document]";
        } else if (type == "input_image") {
            const std::optional<std::string> url = fields.string("image_url");
            const std::optional<std::string> id = fields.string("file_id");
            const std::optional<std::string> detail = read_detail(fields);
            if (id)
                refuse(
                    where + ": file_id is not supported, pass the image as a data URL in image_url",
                    where);
            if (!url) refuse(where + ": input_image needs image_url", where);
            block.image = image_source(*url, detail, false, where);
        } else {
            refuse(where + " has type '" + type.substr(0, 60) + "', expected input_text, " +
                       (outputs_allowed ? "output_text, " : "") + "input_image or input_file",
                   where);
        }
        return block;
    }

    std::vector<ContentBlock> content(const Json& value,
                                      const std::string& path,
                                      bool outputs_allowed) {
        std::vector<ContentBlock> blocks;
        if (value.is_string()) {
            blocks.push_back({value.as_string(), std::nullopt});
        } else if (value.is_array()) {
            for (size_t k = 0; k < value.items().size(); ++k) {
                const std::string where = indexed(path, k);
                blocks.push_back(
                    part(Fields(value.items()[k], where + "."), where, outputs_allowed));
            }
        } else {
            refuse(path + " is " + json_kind(value) + ", expected a string or a list of parts",
                   path);
        }
        return blocks;
    }

    void message(const Fields& fields, size_t i) {
        const std::string role = fields.required_string("role");
        if (role != "user" && role != "assistant" && role != "system" && role != "developer")
            refuse(fields.path("role") + " is '" + role.substr(0, 60) +
                       "', expected user, assistant, system or developer",
                   fields.path("role"));
        const Json* value = fields.json().find("content");
        if (value == nullptr)
            refuse(fields.path("content") + " is missing", fields.path("content"));
        std::vector<ContentBlock> blocks = content(*value, fields.path("content"), true);
        const bool pictures = role == "user" || (c_.compat() && role != "assistant");
        for (const ContentBlock& block : blocks)
            if (block.image && !pictures)
                refuse(
                    indexed("input", i) + ": an image is not allowed in a message of role " + role,
                    fields.path("content"));
        end_outputs();
        if (role == "assistant") {
            if (turn_ && !turn_->tool_calls.empty()) close_turn(true);
            std::string text;
            for (size_t k = 0; k < blocks.size(); ++k)
                text += (k == 0 ? "" : "\n\n") + blocks[k].text;
            open_turn();
            if (!text.empty()) {
                if (!turn_text_.empty()) turn_text_ += "\n\n";
                turn_text_ += text;
            }
            return;
        }
        close_turn(true);
        Message message;
        message.role = role == "user" ? Role::kUser : Role::kSystem;
        message.content = std::move(blocks);
        out().push_back(std::move(message));
    }

    void reasoning_item(const Fields& fields) {
        std::string text;
        if (const std::vector<Json>* parts = fields.array("content")) {
            for (size_t k = 0; k < parts->size(); ++k) {
                const Fields part((*parts)[k], indexed(fields.path("content"), k) + ".");
                text += (k == 0 ? "" : "\n") + part.required_string("text");
            }
        }
        end_outputs();
        if (turn_ && !turn_->tool_calls.empty()) close_turn(true);
        if (text.empty()) return;
        if (turn_ && !turn_text_.empty()) close_turn(true);
        open_turn();
        turn_->reasoning = turn_->reasoning ? *turn_->reasoning + "\n" + text : text;
    }

    void call(const Fields& fields, bool is_custom) {
        ToolCall call;
        call.id = fields.required_string("call_id");
        call.name = fields.required_string("name");
        if (const auto space = fields.string("namespace"); space && !is_custom)
            call.name = *space + "::" + call.name;
        call.arguments = is_custom
                             ? "{\"input\": " + json_quote(fields.required_string("input")) + "}"
                             : fields.required_string("arguments");
        if (!call_ids_.insert(call.id).second)
            refuse(fields.path("call_id") + " is '" + call.id.substr(0, 60) +
                       "' a second time, expected distinct ids",
                   fields.path("call_id"));
        end_outputs();
        open_turn();
        turn_->tool_calls.push_back(std::move(call));
    }

    void output(const Fields& fields, size_t i) {
        Message message;
        message.role = Role::kTool;
        message.tool_call_id = fields.required_string("call_id");
        const Json* value = fields.json().find("output");
        if (value == nullptr) refuse(fields.path("output") + " is missing", fields.path("output"));
        message.content = content(*value, fields.path("output"), false);
        const std::string& id = *message.tool_call_id;
        close_turn(false);
        if (answered_.count(id) != 0)
            refuse(fields.path("call_id") + ": a second output for call '" + id.substr(0, 60) + "'",
                   fields.path("call_id"));
        if (waiting_.erase(id) == 0)
            refuse(
                indexed("input", i) + ": no tool call found for output '" + id.substr(0, 60) + "'",
                fields.path("call_id"));
        answered_.insert(id);
        outputs_.push_back(std::move(message));
    }

    void open_turn() {
        if (turn_) return;
        turn_.emplace();
        turn_->role = Role::kAssistant;
        turn_text_.clear();
    }

    /// Ends the assistant turn. `settled`: its calls must have been answered (something else
    /// follows).
    void close_turn(bool settled) {
        if (turn_) {
            std::vector<ToolCall>& calls = turn_->tool_calls;
            std::stable_sort(calls.begin(), calls.end(), [](const ToolCall& a, const ToolCall& b) {
                return a.id < b.id;
            });
            for (const ToolCall& call : calls) waiting_.insert(call.id);
            append_text(&*turn_, std::move(turn_text_));
            out().push_back(std::move(*turn_));
            turn_.reset();
            turn_text_.clear();
        }
        if (settled && !waiting_.empty())
            refuse("no tool output found for tool call " + waiting_.begin()->substr(0, 60),
                   "input");
    }

    /// The run of outputs is over: all calls are answered, the outputs take the order of the ids.
    void end_outputs() {
        if (outputs_.empty()) return;
        if (!waiting_.empty())
            refuse("no tool output found for tool call " + waiting_.begin()->substr(0, 60),
                   "input");
        std::stable_sort(outputs_.begin(), outputs_.end(), [](const Message& a, const Message& b) {
            return *a.tool_call_id < *b.tool_call_id;
        });
        for (Message& message : outputs_) out().push_back(std::move(message));
        outputs_.clear();
    }

    // ---------------------------------------------------------------- format and echo

    void text_format() {
        format_ = Json::object({{"type", "text"}});
        const std::optional<Fields> text = body_.object("text");
        if (!text) return;
        if (const auto verbosity = text->string("verbosity")) {
            if (*verbosity != "low" && *verbosity != "medium" && *verbosity != "high")
                refuse("text.verbosity is '" + verbosity->substr(0, 60) +
                           "', expected low, medium or high",
                       "text.verbosity");
            verbosity_ = *verbosity;
        }
        const Json* given = text->json().find("format");
        if (given == nullptr || (given->is_null() && !c_.compat())) return;
        const Fields format(*given, "text.format.");
        const std::string type = format.required_string("type");
        if (type == "json_object") {
            c_.conversation().response_format = ResponseFormat::kJsonObject;
            require_word_json("text.format", &c_);
            format_ = Json::object({{"type", type}});
        } else if (type == "json_schema") {
            format.required_string("name");
            read_json_schema(format, &c_);
            format_ = Json::object({{"type", type}});
            for (const char* key : {"name", "schema", "description", "strict"})
                format_.set(key, or_null(format.get(key)));
        } else if (type != "text") {
            refuse("text.format.type is '" + type.substr(0, 60) +
                       "', expected text, json_object or json_schema",
                   "text.format");
        }
    }

    /// The request's fields as the answers repeat them.
    void echo() {
        const RequestSampling& s = c_.request.sampling;
        const std::optional<Fields> reasoning = body_.object("reasoning");
        Json echo = Json::object({{"instructions", or_null(body_.get("instructions"))}});
        echo.set("max_output_tokens", or_null(body_.get("max_output_tokens")));
        echo.set("previous_response_id",
                 c_.request.previous_response_id.empty() ? Json()
                                                         : Json(c_.request.previous_response_id));
        echo.set(
            "reasoning",
            Json::object({{"effort", reasoning ? or_null(reasoning->get("effort")) : Json()},
                          {"summary", reasoning ? or_null(reasoning->get("summary")) : Json()}}));
        echo.set("store", !c_.compat() && c_.options.stored_responses && c_.request.store);
        echo.set("temperature", s.temperature);
        echo.set("text", Json::object({{"format", format_}, {"verbosity", verbosity_}}));
        echo.set("tool_choice",
                 body_.has("tool_choice") ? *body_.get("tool_choice") : Json("auto"));
        echo.set("tools", Json::array(std::move(shown_tools_)));
        echo.set("top_logprobs", s.top_logprobs.value_or(0));
        echo.set("top_p", s.top_p);
        echo.set("user", or_null(body_.get("user")));
        const std::string text = dump_python(echo);
        c_.request.echo = text.substr(1, text.size() - 2);
    }

    const Fields body_;
    Conversion& c_;
    std::vector<DeclaredTool> tools_;
    std::vector<Json> shown_tools_;
    Json format_;
    Json verbosity_;

    std::optional<Message> turn_;  // the assistant turn that is being built
    std::string turn_text_;
    std::vector<Message> outputs_;  // the run of outputs that is being read
    std::set<std::string> waiting_;
    std::unordered_set<std::string> answered_;
    std::unordered_set<std::string> call_ids_;
};

}  // namespace

void convert_responses(const Json& body, Conversion* c) {
    ResponsesConverter(body, c).run();
}

}  // namespace deepinfer::recipe
