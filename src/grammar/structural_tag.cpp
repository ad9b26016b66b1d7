// Structural tags: free text with constrained regions, lowered like everything else.
//
// {"type":"structural_tag","format":F} with F one of const_string, json_schema, regex, grammar,
// any_text, sequence, or, optional, plus, star, repeat, tag, triggered_tags, tags_with_separator;
// and the older
// {"structures":[{"begin","schema","end"}],"triggers":[…]}. In begin, end, triggers and
// const_string the spelling of a marker token (xgrammar_engine.h) means that token.
#include <algorithm>
#include <set>

#include "grammar/automaton.h"
#include "grammar/json_tree.h"
#include "grammar/lowering.h"
#include "grammar/xgrammar_engine.h"

namespace deepinfer::grammar {
namespace {

using Type = JsonNode::Type;

class TagLowering {
  public:
    TagLowering(const StructuredOutputArgs& args,
                Productions& p,
                std::vector<Refusal>* notes,
                const Limits& limits,
                bool between_markup)
        : args_(args), p_(p), notes_(notes), limits_(limits), between_markup_(between_markup) {}

    ExprId whole(const JsonNode& root) {
        if (!root.is(Type::kObject))
            refuse("", "structural_tag", "the structural tag is no object");
        if (root.find("structures") != nullptr) return legacy(root);
        only(root, {"type", "format"});
        const JsonNode& format = member(root, "format", Type::kObject);
        return lower_format(format, 1);
    }

  private:
    static void only(const JsonNode& n, const std::set<std::string>& keys) {
        for (const auto& [key, value] : n.members) {
            if (keys.count(key) == 0)
                refuse(value->pointer, key, "unknown member " + quote_json(key));
        }
    }
    static const JsonNode& member(const JsonNode& n, const char* key, Type type) {
        const JsonNode* v = n.find(key);
        if (v == nullptr)
            refuse(n.pointer, key, std::string("the member ") + quote_json(key) + " is missing");
        if (!v->is(type))
            refuse(v->pointer,
                   key,
                   std::string("expected ") + type_name(type) + ", found " + type_name(v->type));
        return *v;
    }
    static bool flag(const JsonNode& n, const char* key, bool otherwise) {
        return n.find(key) == nullptr ? otherwise : member(n, key, Type::kBool).boolean;
    }
    static std::vector<std::string> texts(const JsonNode& n, const char* key) {
        std::vector<std::string> out;
        for (const JsonNode* i : member(n, key, Type::kArray).items) {
            if (!i->is(Type::kString) || i->text.empty())
                refuse(i->pointer, key, "expected a text that is not empty");
            out.push_back(i->text);
        }
        return out;
    }

    ExprId schema(const JsonNode& s, bool as_parameters = false) {
        try {
            const std::string text = compact_json(s);
            return as_parameters ? lower_parameters(text, args_, p_, notes_, limits_)
                                 : lower_schema(text, args_, p_, notes_, limits_, between_markup_);
        } catch (Refusal r) {
            r.pointer = s.pointer + r.pointer;
            throw r;
        }
    }

    /// Any text in which none of `forbidden` occurs. Markers are tokens and cannot; their spelling
    /// made of other tokens counts too, because parsers of text see no difference.
    ExprId free_text(const std::vector<std::string>& forbidden) {
        std::vector<Regex> ways;
        for (const std::string& f : forbidden) ways.push_back(Regex::text(f));
        const auto one = [this](const CharSet& s) { return std::vector<ExprId>{p_.chars(s)}; };
        if (ways.empty()) return p_.repeat(p_.chars(CharSet::universe()), 0, kNoMax);
        return Automaton::search(Regex::alternate(std::move(ways)), limits_)
            .complement(limits_)
            .expr(p_, one, p_.empty(), "free");
    }
    ExprId lower_format(const JsonNode& f, size_t depth) {
        if (depth > limits_.depth)
            refuse(
                f.pointer, "", "formats are nested deeper than " + std::to_string(limits_.depth));
        if (!f.is(Type::kObject)) refuse(f.pointer, "", "a format is no object");
        const std::string type = member(f, "type", Type::kString).text;
        if (type == "const_string") {
            only(f, {"type", "value"});
            return text_with_markers(member(f, "value", Type::kString).text, p_);
        }
        if (type == "json_schema") {
            only(f, {"type", "json_schema", "style"});
            const JsonNode* style = f.find("style");
            const std::string named =
                style == nullptr ? "json" : member(f, "style", Type::kString).text;
            const bool as_parameters = named == "deepseek_v4_1_xml";
            if (!as_parameters && named != "json") {
                refuse(style->pointer, "style", "expected json or deepseek_v4_1_xml");
            }
            const JsonNode* s = f.find("json_schema");
            if (s == nullptr)
                refuse(f.pointer, "json_schema", "the member \"json_schema\" is missing");
            return schema(*s, as_parameters);
        }
        if (type == "regex") {
            only(f, {"type", "pattern"});
            return lower_regex(
                member(f, "pattern", Type::kString).text, f.pointer + "/pattern", p_, limits_);
        }
        if (type == "grammar") {
            only(f, {"type", "grammar"});
            return lower_ebnf(
                member(f, "grammar", Type::kString).text, f.pointer + "/grammar ", p_, limits_);
        }
        if (type == "any_text") {
            only(f, {"type", "excludes"});
            return free_text(f.find("excludes") == nullptr ? std::vector<std::string>()
                                                           : texts(f, "excludes"));
        }
        if (type == "sequence" || type == "or") {
            only(f, {"type", "elements"});
            std::vector<ExprId> parts;
            for (const JsonNode* e : member(f, "elements", Type::kArray).items)
                parts.push_back(lower_format(*e, depth + 1));
            if (parts.empty()) refuse(f.pointer, "elements", "elements is empty");
            return type == "or" ? p_.choice(std::move(parts)) : p_.sequence(std::move(parts));
        }
        if (type == "optional" || type == "plus" || type == "star") {
            only(f, {"type", "content"});
            const ExprId e = lower_format(member(f, "content", Type::kObject), depth + 1);
            return p_.repeat(e, type == "plus" ? 1 : 0, type == "optional" ? 1 : kNoMax);
        }
        if (type == "repeat") return repetition(f, depth);
        if (type == "tag") return tag(f, depth);
        if (type == "triggered_tags") return triggered(f, depth);
        if (type == "tags_with_separator") return separated(f, depth);
        refuse(f.pointer + "/type", "type", "the format " + quote_json(type) + " is not supported");
    }

    ExprId repetition(const JsonNode& f, size_t depth) {
        only(f, {"type", "content", "min", "max"});
        const auto bound = [&](const char* key, int otherwise) {
            if (f.find(key) == nullptr) return otherwise;
            const JsonNode& v = member(f, key, Type::kNumber);
            if (!v.number.integer() || v.number.whole().size() > 5)
                refuse(v.pointer, key, "expected a count up to 99999");
            const int n = std::stoi(v.number.text());
            if (n < 0 && n != kNoMax) refuse(v.pointer, key, "expected a count");
            return n;
        };
        const int min = bound("min", 0), max = bound("max", kNoMax);
        if (min < 0 || (max != kNoMax && max < min))
            refuse(f.pointer, "max", "the repetition is empty");
        return p_.repeat(lower_format(member(f, "content", Type::kObject), depth + 1), min, max);
    }

    ExprId tag(const JsonNode& f, size_t depth) {
        only(f, {"type", "begin", "content", "end"});
        const std::string begin = member(f, "begin", Type::kString).text;
        const JsonNode& content = member(f, "content", Type::kObject);
        std::vector<std::string> ends;
        const JsonNode* end = f.find("end");
        if (end != nullptr && end->is(Type::kArray)) {
            ends = texts(f, "end");
        } else {
            ends = {member(f, "end", Type::kString).text};
        }
        std::vector<ExprId> closing;
        for (const std::string& e : ends) closing.push_back(text_with_markers(e, p_));
        // Free text runs up to the end of its tag.
        const JsonNode* type = content.find("type");
        ExprId inside = -1;
        if (type != nullptr && type->is(Type::kString) && type->text == "any_text") {
            only(content, {"type", "excludes"});
            std::vector<std::string> stops = ends;
            if (content.find("excludes") != nullptr) {
                for (const std::string& e : texts(content, "excludes")) stops.push_back(e);
            }
            stops.erase(std::remove(stops.begin(), stops.end(), ""), stops.end());
            inside = free_text(stops);
        } else {
            inside = lower_format(content, depth + 1);
        }
        return p_.sequence({text_with_markers(begin, p_), inside, p_.choice(std::move(closing))});
    }

    ExprId triggered(const JsonNode& f, size_t depth) {
        only(f, {"type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"});
        const std::vector<std::string> triggers = texts(f, "triggers");
        std::vector<std::string> forbidden = triggers;
        if (f.find("excludes") != nullptr) {
            for (const std::string& e : texts(f, "excludes")) forbidden.push_back(e);
        }
        std::vector<ExprId> tags;
        for (const JsonNode* t : member(f, "tags", Type::kArray).items) {
            const std::string begin = member(*t, "begin", Type::kString).text;
            const bool known =
                std::any_of(triggers.begin(), triggers.end(), [&](const std::string& g) {
                    return begin.rfind(g, 0) == 0;
                });
            if (!known)
                refuse(t->pointer + "/begin", "begin", "the tag begins with none of the triggers");
            tags.push_back(tag(*t, depth + 1));
        }
        if (tags.empty()) refuse(f.pointer, "tags", "tags is empty");
        return dispatch(forbidden,
                        p_.choice(std::move(tags)),
                        flag(f, "at_least_one", false),
                        flag(f, "stop_after_first", false));
    }

    ExprId dispatch(const std::vector<std::string>& forbidden,
                    ExprId tag,
                    bool at_least_one,
                    bool stop_after_first) {
        const ExprId text = p_.ref(p_.rule("free", free_text(forbidden)));
        const ExprId once = p_.sequence({tag, stop_after_first ? p_.empty() : text});
        if (stop_after_first) return at_least_one ? tag : p_.sequence({text, p_.optional(tag)});
        if (at_least_one) return p_.sequence({once, p_.repeat(once, 0, kNoMax)});
        return p_.sequence({text, p_.repeat(once, 0, kNoMax)});
    }

    ExprId separated(const JsonNode& f, size_t depth) {
        only(f, {"type", "tags", "separator", "at_least_one", "stop_after_first"});
        const ExprId separator = text_with_markers(member(f, "separator", Type::kString).text, p_);
        std::vector<ExprId> tags;
        for (const JsonNode* t : member(f, "tags", Type::kArray).items)
            tags.push_back(tag(*t, depth + 1));
        if (tags.empty()) refuse(f.pointer, "tags", "tags is empty");
        const ExprId one = p_.choice(std::move(tags));
        const bool first_only = flag(f, "stop_after_first", false);
        const ExprId all =
            first_only ? one
                       : p_.sequence({one, p_.repeat(p_.sequence({separator, one}), 0, kNoMax)});
        return flag(f, "at_least_one", false) ? all : p_.optional(all);
    }

    ExprId legacy(const JsonNode& root) {
        only(root, {"type", "structures", "triggers"});
        const std::vector<std::string> triggers = texts(root, "triggers");
        std::vector<ExprId> tags;
        for (const JsonNode* t : member(root, "structures", Type::kArray).items) {
            only(*t, {"begin", "schema", "end"});
            const std::string begin = member(*t, "begin", Type::kString).text;
            const bool known =
                std::any_of(triggers.begin(), triggers.end(), [&](const std::string& g) {
                    return begin.rfind(g, 0) == 0;
                });
            if (!known)
                refuse(t->pointer + "/begin",
                       "begin",
                       "the structure begins with none of the triggers");
            const JsonNode* s = t->find("schema");
            if (s == nullptr) refuse(t->pointer, "schema", "the member \"schema\" is missing");
            tags.push_back(
                p_.sequence({text_with_markers(begin, p_),
                             schema(*s),
                             text_with_markers(member(*t, "end", Type::kString).text, p_)}));
        }
        if (tags.empty()) refuse("/structures", "structures", "structures is empty");
        return dispatch(triggers, p_.choice(std::move(tags)), false, false);
    }

    const StructuredOutputArgs& args_;
    Productions& p_;
    std::vector<Refusal>* notes_;
    const Limits& limits_;
    const bool between_markup_;  ///< of tool calls
};

}  // namespace

ExprId lower_structural_tag(const std::string& text,
                            const StructuredOutputArgs& args,
                            Productions& p,
                            std::vector<Refusal>* notes,
                            const Limits& limits) {
    JsonTree tree;
    const JsonNode* root = tree.parse(text, limits);
    const bool calls = text.find(kMarkers[kMarkerTool]) != std::string::npos;
    return TagLowering(args, p, notes, limits, calls).whole(*root);
}

}  // namespace deepinfer::grammar
