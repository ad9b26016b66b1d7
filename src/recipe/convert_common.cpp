#include "recipe/convert_common.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <unordered_set>

#include "deepinfer/recipe_constraint.h"
#include "recipe/tool_schema.h"
#include "recipe/utf8_stream.h"

namespace deepinfer::recipe {

void read_model(const Fields& body, Conversion* c) {
    c->request.model = body.required_string("model");
    const std::vector<std::string>& names = c->options.model_names;
    if (std::find(names.begin(), names.end(), c->request.model) != names.end()) return;
    ApiError error;
    error.message = "model '" + c->request.model.substr(0, 100) + "' is not served here, expected ";
    for (size_t i = 0; i < names.size(); ++i) error.message += (i == 0 ? "" : ", ") + names[i];
    error.message = valid_utf8(error.message);
    error.param = "model";
    if (!c->compat()) {
        error.status = 404;
        error.type = "not_found_error";
        error.code = "model_not_found";
    }
    throw Refusal(std::move(error));
}

namespace {

Effort read_effort(const Json& value, const std::string& path, const Conversion& c) {
    if (value.is_string()) {
        if (std::optional<Effort> effort = Effort::from_word(value.as_string())) return *effort;
        refuse(path + " is '" + value.as_string().substr(0, 60) +
                   "', expected none, minimal, low, medium, high, xhigh, max, ultra" +
                   (c.compat() ? "" : " or an integer in [1, 100]"),
               path);
    }
    if (!c.compat() && value.is_int()) {
        const std::optional<int64_t> number = value.as_int64();
        if (number && *number >= 1 && *number <= 100)
            return Effort::from_number(static_cast<int>(*number));
        refuse(
            path + " is " + value.as_string().substr(0, 40) + ", expected an integer in [1, 100]",
            path);
    }
    refuse(path + " is " + json_kind(value) + ", expected an effort word" +
               (c.compat() ? "" : " or an integer in [1, 100]"),
           path);
}

}  // namespace

void resolve_thinking(const Json* thinking,
                      const Json* effort,
                      const std::string& thinking_path,
                      const std::string& effort_path,
                      Conversion* c) {
    Conversation& conversation = c->conversation();
    conversation.thinking = c->options.thinking_default;
    if (effort != nullptr) {
        const Effort value = read_effort(*effort, effort_path, *c);
        conversation.thinking = value.word != "none";
        if (conversation.thinking) conversation.effort = value;
    }
    if (thinking == nullptr) return;
    std::string param = thinking_path;
    if (!thinking->is_object())
        refuse(param + " is " + json_kind(*thinking) + ", expected an object", param);
    const Fields fields(*thinking, thinking_path + ".");
    const std::string type = fields.required_string("type");
    fields.integer_in("budget_tokens", 0, std::numeric_limits<uint32_t>::max());
    if (type != "enabled" && type != "adaptive" && type != "disabled")
        refuse(
            param + ".type is '" + type.substr(0, 60) + "', expected enabled, adaptive or disabled",
            param);
    conversation.thinking = type != "disabled";
}

void read_sampling(const Fields& body, Conversion* c) {
    RequestSampling& sampling = c->request.sampling;
    sampling.temperature = body.number_in("temperature", 0, 2).value_or(1.0);
    sampling.top_p = body.number_in("top_p", 0, 1, true).value_or(1.0);
    c->request.stream = body.boolean("stream").value_or(false);
}

void read_max_tokens(const Fields& body,
                     std::string_view key,
                     bool high_is_lowered,
                     Conversion* c) {
    const bool bounded = c->compat() && !high_is_lowered;
    const int64_t high = bounded ? kMaxOutputTokens : std::numeric_limits<uint32_t>::max();
    std::optional<int64_t> value = body.integer_in(key, 1, high);
    if (value && c->compat()) value = std::min(*value, kMaxOutputTokens);
    if (value) c->request.sampling.max_tokens = value;
}

void read_stop(const Fields& body, std::string_view key, bool string_allowed, Conversion* c) {
    const Json* value = body.get(key);
    if (value == nullptr) return;
    std::vector<std::string>& stop = c->request.parsing.stop;
    const std::string path = body.path(key);
    if (string_allowed && value->is_string()) {
        stop.push_back(value->as_string());
        if (stop.back().empty()) refuse(path + " is empty, expected at least one character", path);
        return;
    }
    const std::vector<Json>& items = *body.array(key);
    if (items.size() > kMaxStopSequences)
        refuse(path + " has " + std::to_string(items.size()) + " entries, expected at most " +
                   std::to_string(kMaxStopSequences),
               path);
    for (size_t i = 0; i < items.size(); ++i) {
        const std::string place = indexed(path, i);
        if (!items[i].is_string())
            refuse(place + " is " + json_kind(items[i]) + ", expected a string", place);
        if (items[i].as_string().empty())
            refuse(place + " is empty, expected at least one character", place);
        stop.push_back(items[i].as_string());
    }
}

// ------------------------------------------------------------------ tools

void check_tool_name(const std::string& name, const std::string& path) {
    const bool ok =
        !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char ch) {
            return std::isalnum(static_cast<unsigned char>(ch)) != 0 || ch == '_' || ch == '-';
        });
    if (!ok)
        refuse(path + " is '" + name.substr(0, 140) +
                   "', expected 1 to 128 characters of a-z A-Z 0-9 _ -",
               path);
}

DeclaredTool read_tool(const Fields& function,
                       const char* schema_key,
                       bool takes_strict,
                       Conversion* c) {
    DeclaredTool declared;
    declared.path = function.path("");
    if (!declared.path.empty()) declared.path.pop_back();
    ToolDefinition& tool = declared.tool;
    tool.name = function.required_string("name");
    tool.description = function.string("description");
    if (takes_strict) tool.strict = function.boolean("strict");
    declared.schema = function.get(schema_key);
    tool.definition = dump_python(function.json(), c->numbers());
    if (declared.schema != nullptr) {
        tool.parameters = dump_python(*declared.schema, c->numbers());
        tool.client_parameters = tool.parameters;
    }
    return declared;
}

void apply_tools(std::vector<DeclaredTool> tools,
                 const ToolChoiceRequest& choice,
                 const std::string& choice_path,
                 Conversion* c) {
    Conversation& conversation = c->conversation();
    conversation.tool_choice = choice.choice;
    if (!c->compat() && tools.size() > kMaxTools)
        refuse("tools has " + std::to_string(tools.size()) + " entries, expected at most " +
                   std::to_string(kMaxTools),
               "tools");
    if (choice.choice == ToolChoice::kNone && !choice.name) return;

    std::unordered_set<std::string> names;
    for (DeclaredTool& declared : tools) {
        ToolDefinition& tool = declared.tool;
        if (!names.insert(tool.name).second)
            refuse("tools declares '" + tool.name + "' twice, expected distinct names",
                   declared.path);
        if (tool.strict.value_or(false) && c->compat()) {
            const Json nothing = Json::object({{"type", "object"}});
            const Json& schema = declared.schema == nullptr ? nothing : *declared.schema;
            tool.parameters =
                dump_python(strict_form(schema, true, true, declared.path), c->numbers());
        }
        if (declared.schema == nullptr) continue;
        const Json* type = declared.schema->find("type");
        if (type == nullptr || !type->is_string() || type->as_string() != "object")
            refuse("the schema of tool '" + tool.name + "' has type " +
                       (type == nullptr ? "null" : dump_python(*type).substr(0, 60)) +
                       ", expected \"object\" at its top level",
                   declared.path);
        if (const std::optional<std::string> fault = schema_fault(*declared.schema))
            refuse("the schema of tool '" + tool.name + "': " + *fault, declared.path);
    }
    if (choice.name && tools.empty()) {
        conversation.tool_choice = ToolChoice::kRequired;
    } else if (choice.name) {
        if (names.count(*choice.name) == 0)
            refuse("no tool named '" + choice.name->substr(0, 140) + "' is declared in tools",
                   choice_path);
        tools.erase(
            std::remove_if(tools.begin(),
                           tools.end(),
                           [&](const DeclaredTool& d) { return d.tool.name != *choice.name; }),
            tools.end());
        conversation.tool_choice = ToolChoice::kRequired;
    }
    const auto num_strict = std::count_if(tools.begin(), tools.end(), [](const DeclaredTool& d) {
        return d.tool.strict.value_or(false);
    });
    if (c->compat() && num_strict != 0 && num_strict != static_cast<ptrdiff_t>(tools.size()))
        refuse("strict and other tools in one request", "tools");
    if (conversation.tool_choice == ToolChoice::kRequired) {
        if (tools.empty()) {
            if (!c->compat()) refuse("a tool is required, but tools declares none", choice_path);
            conversation.tool_choice = ToolChoice::kAuto;
        } else if (c->compat() && conversation.thinking) {
            refuse("a tool cannot be required in thinking mode", choice_path);
        }
    }
    for (DeclaredTool& declared : tools) conversation.tools.push_back(std::move(declared.tool));
}

// ------------------------------------------------------------------ response formats

namespace {

void set_guided(const Fields& from,
                const std::string& key,
                StructuredOutputArgs::Type type,
                StructuredOutputArgs* args) {
    using Type = StructuredOutputArgs::Type;
    const Json* value = from.get(key);
    if (value == nullptr) return;
    const std::string place = from.path(key);
    if (type == Type::kJsonObject) {
        if (!from.boolean(key).value_or(false)) return;
    }
    if (!args->empty()) refuse(place + ": only one constraint at a time", place);
    args->type = type;
    if (type == Type::kChoice) {
        const std::vector<Json>* list = from.array(key);
        if (list->empty()) refuse(place + " is empty", place);
        for (const Json& choice : *list) {
            if (!choice.is_string()) refuse(place + ": every choice is a string", place);
            args->choices.push_back(choice.as_string());
        }
    } else if (type == Type::kJson || type == Type::kStructuralTag) {
        args->value = value->is_string() ? value->as_string() : dump_python(*value);
    } else if (type != Type::kJsonObject) {
        args->value = from.required_string(key);
    }
}

}  // namespace

StructuredOutputArgs read_guided(const Fields& body) {
    using Type = StructuredOutputArgs::Type;
    StructuredOutputArgs args;
    const struct {
        const char* key;
        Type type;
    } forms[] = {{"json", Type::kJson},
                 {"regex", Type::kRegex},
                 {"choice", Type::kChoice},
                 {"grammar", Type::kEbnf},
                 {"json_object", Type::kJsonObject},
                 {"structural_tag", Type::kStructuralTag}};
    const std::optional<Fields> nested = body.object("structured_outputs");
    for (const auto& form : forms) {
        if (nested) set_guided(*nested, form.key, form.type, &args);
        set_guided(body, "guided_" + std::string(form.key), form.type, &args);
    }
    return args;
}

void read_json_schema(const Fields& format, Conversion* c) {
    Conversation& conversation = c->conversation();
    const Json* schema = format.json().find("schema");
    if (schema == nullptr)
        refuse(format.path("schema") + " is missing, expected a JSON Schema",
               format.path("schema"));
    format.string("name");
    format.string("description");
    const bool strict = format.boolean("strict").value_or(false);
    if (const std::optional<std::string> fault = schema_fault(*schema))
        refuse(format.path("schema") + ": " + *fault, format.path("schema"));
    if (strict && c->compat()) strict_form(*schema, true, false, format.path("schema"));
    conversation.response_format = ResponseFormat::kJsonSchema;
    conversation.response_schema = dump_python(*schema, c->numbers());
    conversation.response_strict = strict;
}

void require_word_json(const std::string& param, Conversion* c) {
    constexpr std::string_view kWord = "json";
    const auto same = [](char a, char b) {
        return std::tolower(static_cast<unsigned char>(a)) == b;
    };
    for (const Message& message : c->conversation().messages) {
        for (const ContentBlock& block : message.content) {
            const std::string& text = block.text;
            if (std::search(text.begin(), text.end(), kWord.begin(), kWord.end(), same) !=
                text.end())
                return;
        }
    }
    refuse("the messages must contain the word 'json' for a response format of type json_object",
           param);
}

// ------------------------------------------------------------------ images

bool is_base64(std::string_view text) {
    if (text.size() % 4 != 0) return false;
    size_t padding = 0;
    while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=')
        ++padding;
    text.remove_suffix(padding);
    const auto value = [](char ch) -> int {
        if (ch >= 'A' && ch <= 'Z') return ch - 'A';
        if (ch >= 'a' && ch <= 'z') return ch - 'a' + 26;
        if (ch >= '0' && ch <= '9') return ch - '0' + 52;
        return ch == '+' ? 62 : ch == '/' ? 63 : -1;
    };
    for (const char ch : text)
        if (value(ch) < 0) return false;
    // The bits that padding leaves over must be zero: one text, one meaning.
    if (padding == 1 && (value(text.back()) & 3) != 0) return false;
    if (padding == 2 && (value(text.back()) & 15) != 0) return false;
    return true;
}

std::optional<std::string> read_detail(const Fields& image) {
    std::optional<std::string> detail = image.string("detail");
    if (detail && *detail != "low" && *detail != "high" && *detail != "original" &&
        *detail != "auto")
        refuse(image.path("detail") + " is '" + detail->substr(0, 60) +
                   "', expected low, high, original or auto",
               image.path("detail"));
    return detail;
}

namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](char ch) {
        return static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
    });
    return text;
}

}  // namespace

ImageSource image_source(const std::string& url,
                         const std::optional<std::string>& detail,
                         bool data_only,
                         const std::string& path) {
    ImageSource source;
    source.url = url;
    source.detail = detail.value_or("high");
    const std::string head = lower(url.substr(0, std::min<size_t>(url.find(','), 200)));
    if (!data_only && (head.rfind("https:", 0) == 0 || head.rfind("http:", 0) == 0)) return source;
    source.kind = ImageSource::Kind::kDataUrl;
    for (const std::string_view type : {"jpeg", "jpg", "png", "gif", "webp"}) {
        // data:image/png[;parameters];base64,…
        const std::string begin = "data:image/" + std::string(type) + ";";
        if (head.rfind(begin, 0) != 0 || head.size() == url.size()) continue;
        if (head.size() < 7 || head.compare(head.size() - 7, 7, ";base64") != 0) continue;
        if (!is_base64(std::string_view(url).substr(head.size() + 1)))
            refuse(path + " holds invalid base64", path);
        return source;
    }
    refuse(path + " is neither " + (data_only ? "" : "an http(s) URL nor ") +
               "a data URL of image/jpeg, png, gif or webp in base64",
           path);
}

// ------------------------------------------------------------------ the end

void append_text(Message* message, std::string text) {
    message->content.push_back({std::move(text), std::nullopt});
}

namespace {

void refuse_spelled_images(const Conversation& conversation) {
    const auto check = [](const std::string& text, const char* where) {
        if (text.find(kImageToken) != std::string::npos)
            refuse(std::string("the image placeholder is spelled in ") + where +
                       "; it would become an image",
                   "messages");
    };
    for (const Message& message : conversation.messages) {
        for (const ContentBlock& block : message.content) check(block.text, "a message");
        check(message.reasoning.value_or(""), "a reasoning text");
        for (const ToolCall& call : message.tool_calls) {
            check(call.name, "a tool name");
            check(call.arguments, "a call's arguments");
        }
    }
    for (const ToolDefinition& tool : conversation.tools) {
        check(tool.description.value_or(""), "a tool description");
        check(tool.parameters, "a tool schema");
    }
    check(conversation.response_schema, "the response schema");
}

}  // namespace

void complete(Conversion* c) {
    Conversation& conversation = c->conversation();
    for (Message& message : conversation.messages) {
        if (message.role != Role::kAssistant) continue;
        if (!conversation.thinking) {
            message.reasoning.reset();
        } else if (!message.reasoning) {
            message.reasoning = "";
        }
    }
    if (c->options.special_in_content_parse) refuse_spelled_images(conversation);
    if (c->compat() && conversation.response_format != ResponseFormat::kText) {
        for (const ToolDefinition& tool : conversation.tools)
            if (tool.strict.value_or(false))
                refuse("strict tools together with a response format", "tools");
    }

    c->request.must_call = conversation.tool_choice == ToolChoice::kRequired;
    if (c->request.must_call && conversation.thinking) conversation.tool_choice = ToolChoice::kAuto;

    ParsingOptions parsing = parsing_options(conversation);
    parsing.stop = std::move(c->request.parsing.stop);
    parsing.parallel_tool_calls = c->request.parsing.parallel_tool_calls || c->compat();
    parsing.compat = c->compat();
    // An open turn that is the whole conversation has lost its thinking part (prompt spec 3.6): its
    // prompt ends in "</think>". The reference reads on as if it did not.
    const bool open_alone = conversation.messages.size() == 1 && conversation.messages[0].open &&
                            conversation.tools.empty() &&
                            (conversation.response_format == ResponseFormat::kText ||
                             conversation.response_format == ResponseFormat::kRegex);
    if (open_alone && !c->compat() && parsing.start != ParserStart::kContentContinued)
        parsing.start = ParserStart::kContent;
    c->request.parsing = std::move(parsing);
    const Result<StructuredOutputArgs> constraint = output_constraint(c->request);
    c->request.parsing.calls_in_reasoning =
        c->compat() || (constraint.ok() && constraint.value().empty());

    c->request.compat = c->compat();
    if (!c->compat()) return;
    // The service's rules: temperature 1 while thinking and top_p near 1, top_p 1 otherwise.
    RequestSampling& sampling = c->request.sampling;
    if (conversation.thinking) {
        sampling.temperature = 1.0;
        sampling.top_p = std::clamp(sampling.top_p, 0.95, 1.0);
    } else {
        sampling.top_p = 1.0;
    }
}

}  // namespace deepinfer::recipe
