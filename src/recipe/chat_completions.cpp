// Chat Completions bodies -> conversation (prompt spec 7.2).
#include <limits>
#include <set>
#include <unordered_set>

#include "recipe/convert_common.h"

namespace deepinfer::recipe {

namespace {

enum class Images { kAllowed, kRefused };

ContentBlock content_block(const Json& item, const std::string& path, Images images) {
    const Fields block(item, path + ".");
    const std::string type = block.required_string("type");
    if (type == "text") return {block.required_string("text"), std::nullopt};
    if (type != "image_url" && type != "file")
        refuse(path + " has type '" + type.substr(0, 60) + "', expected text, image_url or file",
               path);
    ContentBlock out;
    if (type == "image_url") {
        const std::optional<Fields> image = block.object("image_url");
        if (!image) refuse(block.path("image_url") + " is missing", block.path("image_url"));
        out.image = image_source(image->required_string("url"), read_detail(*image), false, path);
    } else {
        const std::optional<std::string> data = block.string("file_data");
        const std::optional<std::string> id = block.string("file_id");
        block.string("filename");
        if (id || !data)
            refuse(path + ": file_id is not supported, pass the image as a data URL in file_data",
                   path);
        out.image = image_source(*data, std::nullopt, true, path);
    }
    if (images == Images::kRefused)
        refuse(path + ": an image is not allowed in this message", path);
    return out;
}

std::vector<ContentBlock> read_content(const Json& value, const std::string& path, Images images) {
    std::vector<ContentBlock> out;
    if (value.is_string()) {
        out.push_back({value.as_string(), std::nullopt});
    } else if (value.is_array()) {
        for (size_t i = 0; i < value.items().size(); ++i)
            out.push_back(content_block(value.items()[i], indexed(path, i), images));
    } else {
        refuse(path + " is " + json_kind(value) + ", expected a string or a list of blocks", path);
    }
    return out;
}

bool is_empty(const std::vector<ContentBlock>& content) {
    if (content.size() > 1) return false;  // joined by a blank line
    return content.empty() || (content[0].text.empty() && !content[0].image);
}

class ChatConverter {
  public:
    ChatConverter(const Json& json, Conversion* c) : body_(json, ""), c_(*c) {}

    void run() {
        read_model(body_, &c_);
        resolve_thinking(body_.get("thinking"),
                         body_.get("reasoning_effort"),
                         "thinking",
                         "reasoning_effort",
                         &c_);
        sampling();
        messages();
        tools();
        response_format();
        check_prefix();
        complete(&c_);
    }

  private:
    void sampling() {
        RequestSampling& s = c_.request.sampling;
        read_sampling(body_, &c_);
        read_max_tokens(body_, "max_tokens", false, &c_);
        if (!c_.compat()) read_max_tokens(body_, "max_completion_tokens", false, &c_);
        read_stop(body_, "stop", true, &c_);
        s.presence_penalty = body_.number_in("presence_penalty", -2, 2).value_or(0);
        s.frequency_penalty = body_.number_in("frequency_penalty", -2, 2).value_or(0);
        s.n = static_cast<int>(body_.integer_in("n", 1, c_.compat() ? 1 : 16).value_or(1));
        if (const auto seed = body_.integer_in("seed", 0, std::numeric_limits<int64_t>::max()))
            s.seed = static_cast<uint64_t>(*seed);
        s.logprobs = body_.boolean("logprobs").value_or(false);
        if (const auto top = body_.integer_in("top_logprobs", 0, 20)) {
            if (!s.logprobs) refuse("top_logprobs needs logprobs: true", "top_logprobs");
            s.top_logprobs = static_cast<int>(*top);
        }
        if (const auto stream_options = body_.object("stream_options")) {
            if (!c_.request.stream) refuse("stream_options needs stream: true", "stream_options");
            c_.request.include_usage = stream_options->boolean("include_usage").value_or(false);
        }
        const char* user_key = body_.has("user") ? "user" : "user_id";
        if (const Json* user = body_.get(user_key); user != nullptr && user->is_string())
            c_.request.user = user->as_string();
        c_.request.parsing.parallel_tool_calls =
            body_.boolean("parallel_tool_calls").value_or(true);
        if (!c_.compat()) extensions(&s);
    }

    void extensions(RequestSampling* s) {
        constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
        s->top_k = body_.integer_in("top_k", -1, kMax).value_or(0);
        if (s->top_k < 0) s->top_k = 0;
        s->min_p = body_.number_in("min_p", 0, 1).value_or(0);
        s->repetition_penalty = body_.number_in("repetition_penalty", 0, 100, true).value_or(1);
        s->min_tokens = body_.integer_in("min_tokens", 0, kMax).value_or(0);
        s->ignore_eos = body_.boolean("ignore_eos").value_or(false);
        s->so_args = read_guided(body_);
        if (const std::vector<Json>* ids = body_.array("stop_token_ids")) {
            for (size_t i = 0; i < ids->size(); ++i) {
                const std::optional<int64_t> id = (*ids)[i].as_int64();
                const std::string place = indexed("stop_token_ids", i);
                if (!id || *id < 0)
                    refuse(place + " is " + json_kind((*ids)[i]) + ", expected a token id", place);
                s->stop_token_ids.push_back(*id);
            }
        }
        if (const auto bias = body_.object("logit_bias")) {
            for (const Json::Member& member : bias->json().members()) {
                const std::string place = "logit_bias." + member.first.substr(0, 40);
                const std::optional<int64_t> id = Json::integer(member.first).as_int64();
                if (!id || *id < 0) refuse(place + ": the key is no token id", "logit_bias");
                const double value = member.second.is_number() ? member.second.as_double() : 1000;
                if (!(value >= -100 && value <= 100))
                    refuse(place + ": expected a number in [-100, 100]", "logit_bias");
                s->logit_bias.emplace_back(*id, value);
            }
        }
    }

    void messages() {
        const std::vector<Json>* list = body_.array("messages");
        if (list == nullptr) refuse("messages is missing, expected an array", "messages");
        if (list->empty()) refuse("messages is empty, expected at least one message", "messages");
        std::unordered_set<std::string> waiting;  // calls that the next messages must answer
        std::unordered_set<std::string> answered;
        size_t num_due = 0;
        for (size_t i = 0; i < list->size(); ++i) {
            const Fields fields((*list)[i], indexed("messages", i) + ".");
            Message message = read_message(fields, i);
            const bool is_tool = message.role == Role::kTool;
            if (num_due > 0 && !is_tool)
                refuse(indexed("messages", i) + ": the tool calls before it need " +
                           std::to_string(num_due) +
                           " more tool message(s) directly after their message",
                       indexed("messages", i));
            if (is_tool) {
                if (num_due == 0)
                    refuse(indexed("messages", i) +
                               " has role 'tool' but answers no preceding tool call",
                           indexed("messages", i));
                const std::string& id = *message.tool_call_id;
                const bool known = waiting.count(id) != 0;
                if (!known || !answered.insert(id).second)
                    refuse(fields.path("tool_call_id") + " is '" + id.substr(0, 60) +
                               "', expected the id of an unanswered call",
                           fields.path("tool_call_id"));
                --num_due;
            }
            if (!message.tool_calls.empty()) {
                waiting.clear();
                answered.clear();
                for (const ToolCall& call : message.tool_calls) waiting.insert(call.id);
                num_due = waiting.size();
            }
            const bool vanishes = message.role == Role::kSystem && is_empty(message.content);
            if (vanishes) continue;
            last_index_ = i;
            c_.conversation().messages.push_back(std::move(message));
        }
        if (num_due > 0)
            refuse("the last tool calls need " + std::to_string(num_due) + " more tool message(s)",
                   "messages");
    }

    Message read_message(const Fields& fields, size_t i) {
        Message message;
        const std::string role = fields.required_string("role");
        if (role == "system" || (role == "developer" && !c_.compat())) {
            message.role = Role::kSystem;
        } else if (role == "user") {
            message.role = Role::kUser;
        } else if (role == "assistant") {
            message.role = Role::kAssistant;
        } else if (role == "tool") {
            message.role = Role::kTool;
        } else if (role == "latest_reminder") {
            message.role = Role::kLatestReminder;
        } else {
            refuse(fields.path("role") + " is '" + role.substr(0, 60) +
                       "', expected system, user, assistant, tool or latest_reminder",
                   fields.path("role"));
        }
        const bool pictures = message.role == Role::kUser || message.role == Role::kTool ||
                              (message.role == Role::kSystem && c_.compat());
        const Json* content = fields.json().find("content");
        fields.string("name");
        if (message.role == Role::kAssistant) {
            assistant(fields, content, &message);
        } else if (message.role == Role::kLatestReminder) {
            append_text(&message, fields.required_string("content"));
        } else {
            if (content == nullptr)
                refuse(fields.path("content") + " is missing", fields.path("content"));
            message.content = read_content(
                *content, fields.path("content"), pictures ? Images::kAllowed : Images::kRefused);
        }
        if (message.role == Role::kTool)
            message.tool_call_id = fields.required_string("tool_call_id");
        if (message.role == Role::kAssistant && message.open) open_at_ = i;
        return message;
    }

    void assistant(const Fields& fields, const Json* content, Message* message) {
        if (content != nullptr && !content->is_null())
            message->content = read_content(*content, fields.path("content"), Images::kRefused);
        message->reasoning = fields.string("reasoning_content");
        if (!message->reasoning && !c_.compat()) message->reasoning = fields.string("reasoning");
        message->open = fields.boolean("prefix").value_or(false);
        if (const std::vector<Json>* calls = fields.array("tool_calls")) {
            const std::string path = fields.path("tool_calls");
            if (calls->empty()) refuse(path + " is empty, expected at least one call", path);
            std::set<std::string> ids;
            for (size_t k = 0; k < calls->size(); ++k) {
                const Fields call((*calls)[k], indexed(path, k) + ".");
                if (c_.compat()) call.required_string("type");
                const std::string type = call.string("type").value_or("function");
                if (type != "function")
                    refuse(
                        call.path("type") + " is '" + type.substr(0, 60) + "', expected function",
                        call.path("type"));
                const std::optional<Fields> function = call.object("function");
                if (!function) refuse(call.path("function") + " is missing", call.path("function"));
                ToolCall out{call.required_string("id"),
                             function->required_string("name"),
                             function->required_string("arguments")};
                if (!ids.insert(out.id).second)
                    refuse(call.path("id") + " is '" + out.id.substr(0, 60) +
                               "' a second time, expected distinct ids",
                           call.path("id"));
                message->tool_calls.push_back(std::move(out));
            }
            has_calls_ = true;
        } else if (content == nullptr || content->is_null()) {
            refuse(fields.path("content") + ": an assistant message needs content or tool_calls",
                   fields.path("content"));
        }
    }

    void tools() {
        std::vector<DeclaredTool> tools;
        if (const std::vector<Json>* list = body_.array("tools")) {
            for (size_t i = 0; i < list->size(); ++i) {
                const Fields entry((*list)[i], indexed("tools", i) + ".");
                const std::string type = entry.required_string("type");
                if (type != "function")
                    refuse(
                        entry.path("type") + " is '" + type.substr(0, 60) + "', expected function",
                        entry.path("type"));
                const std::optional<Fields> function = entry.object("function");
                if (!function)
                    refuse(entry.path("function") + " is missing", entry.path("function"));
                tools.push_back(read_tool(*function, "parameters", true, &c_));
                check_tool_name(tools.back().tool.name, function->path("name"));
            }
        }
        has_tools_ = !tools.empty();
        ToolChoiceRequest choice;
        if (const Json* value = body_.get("tool_choice")) {
            if (value->is_object()) {
                const Fields named(*value, "tool_choice.");
                const std::optional<Fields> function = named.object("function");
                if (named.required_string("type") != "function" || !function)
                    refuse("tool_choice names no function", "tool_choice");
                choice.name = function->required_string("name");
            } else if (value->is_string() && value->as_string() == "none") {
                choice.choice = ToolChoice::kNone;
            } else if (value->is_string() && value->as_string() == "required") {
                choice.choice = ToolChoice::kRequired;
            } else if (!value->is_string() || value->as_string() != "auto") {
                refuse("tool_choice is " + dump_python(*value).substr(0, 60) +
                           ", expected none, auto, required or {type: function, function: {name}}",
                       "tool_choice");
            }
        }
        apply_tools(std::move(tools), choice, "tool_choice", &c_);
    }

    void response_format() {
        const std::optional<Fields> format = body_.object("response_format");
        if (!format) return;
        const std::string type = format->required_string("type");
        for (const ToolDefinition& tool : c_.conversation().tools) {
            if (c_.compat() && tool.strict.value_or(false))
                refuse("strict tools together with a response format", "response_format");
        }
        if (type == "json_object") {
            c_.conversation().response_format = ResponseFormat::kJsonObject;
            require_word_json("response_format", &c_);
        } else if (type == "json_schema") {
            const std::optional<Fields> schema = format->object("json_schema");
            if (!schema)
                refuse("response_format.json_schema is missing", "response_format.json_schema");
            read_json_schema(*schema, &c_);
        } else if (type == "regex") {
            c_.conversation().response_format = ResponseFormat::kRegex;
            c_.conversation().response_regex = format->required_string("regex");
        } else if (type != "text") {
            refuse("response_format.type is '" + type.substr(0, 60) +
                       "', expected text, json_object, json_schema or regex",
                   "response_format");
        }
    }

    void check_prefix() {
        if (!open_at_) return;
        const std::string param = indexed("messages", *open_at_) + ".prefix";
        if (*open_at_ != last_index_)
            refuse(param + ": only the last message, an assistant's, can be continued", param);
        if (has_tools_ || has_calls_)
            refuse(param + " cannot be used together with tools or tool calls", param);
        if (c_.conversation().response_format == ResponseFormat::kJsonObject)
            refuse(param + " cannot be used together with a response format of type json_object",
                   param);
    }

    const Fields body_;
    Conversion& c_;
    std::optional<size_t> open_at_;  // the first message with prefix: true
    size_t last_index_ = 0;
    bool has_calls_ = false;
    bool has_tools_ = false;
};

}  // namespace

void convert_chat_completions(const Json& body, Conversion* c) {
    ChatConverter(body, c).run();
}

}  // namespace deepinfer::recipe
