// Arguments of tool calls in DSML: JsonWriter's forms in the prompt format's own dress.
#include <algorithm>

#include "grammar/json_writer.h"
#include "grammar/lowering.h"

namespace deepinfer::grammar {
namespace {

/// Characters of a parameter name that is not declared: nothing that could end the attribute.
CharSet name_characters() {
    CharSet s = CharSet::of('0', '9');
    s.add('A', 'Z');
    s.add('a', 'z');
    for (const char c : {'_', '-', '.'}) s.add(static_cast<uint8_t>(c), static_cast<uint8_t>(c));
    return s;
}

}  // namespace

ExprId JsonWriter::raw_text(const StringPart& part) {
    // The parser of calls ends a value at this spelling, token or not.
    const std::string end = "</｜DSML｜";
    if (part.list) {
        std::vector<ExprId> ways;
        for (const std::string& s : part.values()) {
            if (s.find(end) == std::string::npos) ways.push_back(p_.literal(s));
        }
        return p_.choice(std::move(ways));
    }
    if (part.conditions.empty() && !(part.min == 0 && part.max == StringPart::kNoEnd)) {
        // Counted characters are cheap as long as it is one class: here without the bar.
        const ExprId any = p_.chars(CharSet::universe().minus(CharSet::one(0xFF5C)));
        return p_.repeat(any, static_cast<int>(part.min), static_cast<int>(part.max));
    }
    const Limits& limits = algebra_.limits();
    const auto one = [this](const CharSet& s) { return std::vector<ExprId>{p_.chars(s)}; };
    return part.language(limits)
        .combine(Automaton::search(Regex::text(end), limits), SetOperation::kMinus, limits)
        .expr(p_, one, p_.empty(), "text");
}

ExprId JsonWriter::parameter(ExprId name, const Conjunction& c) {
    Forms others = algebra_.forms(c);
    std::vector<ExprId> texts, ways;
    for (const StringPart& s : others.strings) texts.push_back(raw_text(s));
    others.strings.clear();
    if (!texts.empty())
        ways.push_back(p_.sequence({p_.literal("true\">"), p_.choice(std::move(texts))}));
    if (!others.none()) ways.push_back(p_.sequence({p_.literal("false\">"), forms(others)}));
    return p_.sequence({text_with_markers("<｜DSML｜ parameter name=\"", p_),
                        name,
                        p_.choice(std::move(ways)),
                        text_with_markers("</｜DSML｜ parameter>\n", p_)});
}

ExprId JsonWriter::parameter_list(const MemberForm& form) {
    std::vector<std::string> keys = form.order;
    for (const std::string& k : form.required) {
        if (std::find(keys.begin(), keys.end(), k) == keys.end()) keys.push_back(k);
    }
    std::vector<ExprId> parts;
    int64_t num_required = 0, num_members = 0;
    for (const std::string& k : keys) {
        const bool required = form.required.count(k) > 0;
        const Conjunction c = form.value_of(k);
        if (algebra_.is_never(c)) {
            if (required) return p_.never();
            continue;
        }
        if (k.find_first_of("\"<>\n") != std::string::npos || k.empty()) {
            refuse(form.pointer,
                   "properties",
                   "the key " + quote_json(k) + " cannot be written as a parameter name");
        }
        ++num_members;
        num_required += required;
        const ExprId one =
            p_.ref(p_.rule("parameter", parameter(p_.literal(k + "\" string=\""), c)));
        parts.push_back(required ? one : p_.optional(one));
    }
    const auto classes = open_keys(form);
    if (form.min > num_required ||
        (form.max >= 0 && (form.max < num_members || !classes.empty()))) {
        algebra_.give_up(
            {form.pointer, "minProperties", "the number of arguments of a call is not counted"});
    }
    std::vector<ExprId> others;
    const Limits& limits = algebra_.limits();
    for (const auto& [language, c] : classes) {
        const Regex names = Regex::repeat(Regex::chars(name_characters()), 1, kNoMax);
        const Automaton allowed =
            language.combine(Automaton::full(names, limits), SetOperation::kAnd, limits);
        if (allowed.empty()) continue;
        const auto one = [this](const CharSet& s) { return std::vector<ExprId>{p_.chars(s)}; };
        others.push_back(parameter(allowed.expr(p_, one, p_.literal("\" string=\""), "name"), c));
    }
    if (!others.empty()) parts.push_back(p_.repeat(p_.choice(std::move(others)), 0, kNoMax));
    return p_.sequence(std::move(parts));
}

ExprId JsonWriter::parameters() {
    std::vector<ExprId> ways;
    for (const MemberForm& m : algebra_.forms(algebra_.whole()).objects)
        ways.push_back(parameter_list(m));
    return p_.choice(std::move(ways));
}

}  // namespace deepinfer::grammar
