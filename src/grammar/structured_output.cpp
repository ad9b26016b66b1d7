#include "deepinfer/structured_output.h"

#include <algorithm>
#include <map>

#include "base/work_budget.h"
#include "grammar/constraint_compiler.h"
#include "grammar/json_tree.h"
#include "grammar/lowering.h"
#include "grammar/xgrammar_engine.h"

namespace deepinfer {
namespace {

using grammar::JsonNode;
using grammar::JsonTree;
using grammar::Refusal;
using grammar::refuse;
using Args = StructuredOutputArgs;
using Type = JsonNode::Type;

const std::vector<std::pair<std::string, Args::Type>>& type_names() {
    static const std::vector<std::pair<std::string, Args::Type>> names = {
        {"regex", Args::Type::kRegex},
        {"json", Args::Type::kJson},
        {"json_schema", Args::Type::kJson},
        {"json_object", Args::Type::kJsonObject},
        {"ebnf", Args::Type::kEbnf},
        {"grammar", Args::Type::kEbnf},
        {"choice", Args::Type::kChoice},
        {"structural_tag", Args::Type::kStructuralTag}};
    return names;
}

void set_value(Args* args, Args::Type type, const JsonNode& v, const std::string& name) {
    args->type = type;
    switch (type) {
        case Args::Type::kRegex:
        case Args::Type::kEbnf:
            if (!v.is(Type::kString)) refuse("", name, "so_args." + name + " is no string");
            args->value = v.text;
            return;
        case Args::Type::kJson:
        case Args::Type::kStructuralTag:
            args->value = v.is(Type::kString) ? v.text : grammar::compact_json(v);
            return;
        case Args::Type::kChoice:
            if (!v.is(Type::kArray) || v.items.empty())
                refuse("", name, "so_args." + name + " is no list of texts");
            for (const JsonNode* i : v.items) {
                if (!i->is(Type::kString))
                    refuse("", name, "so_args." + name + " holds something that is no text");
                args->choices.push_back(i->text);
            }
            return;
        default:
            return;
    }
}

Args read(const JsonNode& n) {
    if (!n.is(Type::kObject)) refuse("", "so_args", "so_args is no JSON object");
    Args args;
    const JsonNode* value = n.find("value");
    const JsonNode* type = n.find("type");
    const auto flag = [](const std::string& key, const JsonNode& v) {
        if (!v.is(Type::kBool)) refuse("", key, "so_args." + key + " is neither true nor false");
        return v.boolean;
    };
    for (const auto& [key, v] : n.members) {
        const auto form = std::find_if(type_names().begin(),
                                       type_names().end(),
                                       [&k = key](const auto& p) { return p.first == k; });
        if (key == "type" || key == "value") continue;
        if (key == "strict") {
            args.strict = flag(key, *v);
        } else if (key == "any_whitespace") {
            args.any_whitespace = flag(key, *v);
        } else if (key == "in_reasoning") {
            args.in_reasoning = flag(key, *v);
        } else if (key == "backtrack") {
            if (!v->is(Type::kString) || v->text != "none")
                refuse("",
                       key,
                       "so_args.backtrack is " + grammar::compact_json(*v) + ", expected \"none\"");
        } else if (form != type_names().end()) {
            if (v->is(Type::kNull)) continue;
            if (!args.empty() || type != nullptr)
                refuse("", key, "so_args holds more than one constraint");
            if (form->second == Args::Type::kJsonObject && !flag(key, *v)) continue;
            set_value(&args, form->second, *v, key);
        } else {
            refuse("",
                   key,
                   "so_args." + key +
                       " is no known member (type and value, or one of regex, json, json_schema, "
                       "json_object, ebnf, grammar, choice, structural_tag)");
        }
    }
    if (type != nullptr) {
        const auto form =
            std::find_if(type_names().begin(), type_names().end(), [&](const auto& p) {
                return type->is(Type::kString) && p.first == type->text;
            });
        if (form == type_names().end())
            refuse("",
                   "type",
                   "so_args.type is " + grammar::compact_json(*type) +
                       ", expected regex, json, json_object, ebnf, choice or structural_tag");
        if (value == nullptr && form->second != Args::Type::kJsonObject)
            refuse("", "value", "so_args.value is missing");
        if (value == nullptr) {
            args.type = form->second;
        } else {
            set_value(&args, form->second, *value, "value");
        }
    } else if (value != nullptr) {
        refuse("", "value", "so_args.value without so_args.type");
    }
    if (args.empty()) refuse("", "so_args", "so_args holds no constraint");
    return args;
}

grammar::Limits line_limits() {
    grammar::Limits limits;
    limits.source_bytes = size_t{64} << 20;
    limits.depth = 200;  // the schema inside has its own limit
    return limits;
}

ConstraintFinding finding(const Refusal& r) {
    return {r.pointer, r.keyword, r.reason};
}

std::string findings_json(const std::vector<ConstraintFinding>& list) {
    std::string out;
    for (const ConstraintFinding& f : list) {
        out += (out.empty() ? "" : ",") + std::string("{\"pointer\":") +
               grammar::quote_json(f.pointer) + ",\"keyword\":" + grammar::quote_json(f.keyword) +
               ",\"reason\":" + grammar::quote_json(f.reason) + "}";
    }
    return "[" + out + "]";
}

}  // namespace

Result<StructuredOutputArgs> structured_output_from_json(std::string_view json) {
    try {
        JsonTree tree;
        return read(*tree.parse(json, line_limits()));
    } catch (const Refusal& r) {
        return Status(StatusCode::kInvalidArgument, "so_args: " + grammar::refusal_sentence(r));
    }
}

Result<std::string> json_member_text(std::string_view json, const std::vector<std::string>& path) {
    try {
        JsonTree tree;
        const JsonNode* n = tree.parse(json, line_limits());
        for (const std::string& key : path) {
            n = n->find(key);
            if (n == nullptr) refuse("", key, "there is no member " + grammar::quote_json(key));
        }
        return grammar::compact_json(*n);
    } catch (const Refusal& r) {
        return Status(StatusCode::kInvalidArgument, grammar::refusal_sentence(r));
    }
}

std::string structured_output_to_json(const StructuredOutputArgs& a) {
    static const std::map<Args::Type, std::string> names = {
        {Args::Type::kRegex, "regex"},
        {Args::Type::kJson, "json"},
        {Args::Type::kJsonObject, "json_object"},
        {Args::Type::kEbnf, "ebnf"},
        {Args::Type::kChoice, "choice"},
        {Args::Type::kStructuralTag, "structural_tag"}};
    if (a.empty()) return "null";
    std::string out = "{\"type\":\"" + names.at(a.type) + "\"";
    if (a.type == Args::Type::kChoice) {
        std::string list;
        for (const std::string& c : a.choices)
            list += (list.empty() ? "" : ",") + grammar::quote_json(c);
        out += ",\"value\":[" + list + "]";
    } else if (a.type != Args::Type::kJsonObject) {
        out += ",\"value\":" + grammar::quote_json(a.value);
    }
    const auto flag = [&](const char* name, bool v) {
        out += std::string(",\"") + name + "\":" + (v ? "true" : "false");
    };
    flag("strict", a.strict);
    flag("any_whitespace", a.any_whitespace);
    flag("in_reasoning", a.in_reasoning);
    return out + "}";
}

namespace {

void judge(const StructuredOutputArgs& args,
           const std::vector<std::string>& texts,
           ConstraintReport* report) {
    std::string ebnf;
    try {
        grammar::Lowered lowered = grammar::lower(args);
        for (const Refusal& r : lowered.notes) report->notes.push_back(finding(r));
        ebnf = std::move(lowered.ebnf);
    } catch (const Refusal& r) {
        report->refused.push_back(finding(r));
        return;
    }
    const auto compiled = grammar::CompiledGrammar::compile(grammar::Vocabulary::bytes(), ebnf, 1);
    if (!compiled.ok()) {
        report->refused.push_back({"", "", compiled.status().message()});
        return;
    }
    report->ok = true;
    const WorkBudget::Scope texts_are_free(nullptr);
    for (const std::string& text : texts) {
        grammar::Matcher matcher(compiled.value());
        // In structural tags the spelling of a marker means its token.
        const bool marked = args.type == Args::Type::kStructuralTag;
        const std::string read = marked ? grammar::marked_text(text) : text;
        report->accepted.push_back(matcher.accept_text(read) && matcher.complete());
    }
}

}  // namespace

ConstraintReport check_constraint(const StructuredOutputArgs& args,
                                  const std::vector<std::string>& texts) {
    constexpr int64_t kNsPerMs = 1'000'000;
    const grammar::CompilerConfig limits;  // an engine's
    WorkBudget budget(limits.compile_ms * kNsPerMs, static_cast<int64_t>(limits.work_bytes));
    const WorkBudget::Scope scope(&budget);
    ConstraintReport report;
    try {
        judge(args, texts, &report);
    } catch (const WorkBudgetExceeded& e) {
        report.refused.push_back({"", "", std::string("compiling the constraint: ") + e.what()});
    }
    return report;
}

std::string constraint_report_json(const ConstraintReport& r) {
    std::string accepted;
    for (const bool a : r.accepted)
        accepted += std::string(accepted.empty() ? "" : ",") + (a ? "true" : "false");
    return std::string("{\"ok\":") + (r.ok ? "true" : "false") +
           ",\"refused\":" + findings_json(r.refused) + ",\"notes\":" + findings_json(r.notes) +
           ",\"accepted\":[" + accepted + "]}";
}

std::string check_constraint_json_line(std::string_view line) {
    ConstraintReport report;
    try {
        JsonTree tree;
        const JsonNode* root = tree.parse(line, line_limits());
        if (!root->is(Type::kObject)) refuse("", "", "the line is no JSON object");
        const JsonNode* so_args = root->find("so_args");
        if (so_args == nullptr) refuse("", "so_args", "the line has no so_args");
        std::vector<std::string> texts;
        if (const JsonNode* list = root->find("texts")) {
            if (!list->is(Type::kArray)) refuse("", "texts", "texts is no array");
            for (const JsonNode* t : list->items) {
                if (!t->is(Type::kString))
                    refuse("", "texts", "texts holds something that is no string");
                texts.push_back(t->text);
            }
        }
        report = check_constraint(read(*so_args), texts);
    } catch (const Refusal& r) {
        report.refused.push_back(finding(r));
    }
    return constraint_report_json(report);
}

}  // namespace deepinfer
