#include "grammar/lowering.h"

#include <algorithm>

#include "grammar/automaton.h"
#include "grammar/json_writer.h"
#include "grammar/regex.h"
#include "grammar/xgrammar_engine.h"

namespace deepinfer::grammar {

ExprId lower_regex(const std::string& pattern,
                   const std::string& pointer,
                   Productions& p,
                   const Limits& limits) {
    const Regex r = parse_regex(pattern, pointer, limits);
    const auto one = [&p](const CharSet& s) { return p.chars(s); };
    // A deterministic automaton has no ambiguity to carry along; where it would be large, the
    // expression itself is written.
    constexpr uint64_t kSmall = 3000;
    Limits small = limits;
    small.automaton_states = 600;
    small.automaton_edges = 20000;
    const bool plain = anchors_at_ends(r);
    if (!plain || r.size() <= kSmall) {
        try {
            const Automaton a = Automaton::full(r, plain ? small : limits);
            if (a.empty()) refuse(pointer, "regex", "no text matches the regular expression");
            const auto sets = [&p](const CharSet& s) { return std::vector<ExprId>{p.chars(s)}; };
            return a.expr(p, sets, p.empty(), "text");
        } catch (const Refusal& refusal) {
            if (!plain || refusal.keyword == "regex") throw;
        }
    }
    return regex_expr(without_anchors(r), p, one);
}

namespace {

/// Checks the schema and writes either its JSON or its call arguments.
ExprId write_schema(const std::string& text,
                    const StructuredOutputArgs& args,
                    bool as_parameters,
                    bool between_markup,
                    Productions& p,
                    std::vector<Refusal>* notes,
                    const Limits& limits) {
    JsonTree tree;
    const JsonNode* root = tree.parse(text, limits);
    SchemaAlgebra algebra(tree, root, args.strict, limits);
    algebra.check();
    JsonWriter writer(algebra, p, args.any_whitespace, between_markup);
    const RuleId whole = as_parameters ? p.rule("arguments", writer.parameters()) : writer.whole();
    writer.finish();
    notes->insert(notes->end(), algebra.notes().begin(), algebra.notes().end());
    if (!p.productive_rules()[static_cast<size_t>(whole)]) {
        refuse("",
               "",
               as_parameters ? "no object satisfies the schema" : "no value satisfies the schema");
    }
    return p.ref(whole);
}

}  // namespace

ExprId lower_schema(const std::string& text,
                    const StructuredOutputArgs& args,
                    Productions& p,
                    std::vector<Refusal>* notes,
                    const Limits& limits,
                    bool between_markup) {
    return write_schema(text, args, false, between_markup, p, notes, limits);
}

ExprId lower_parameters(const std::string& text,
                        const StructuredOutputArgs& args,
                        Productions& p,
                        std::vector<Refusal>* notes,
                        const Limits& limits) {
    return write_schema(text, args, true, true, p, notes, limits);
}

ExprId lower_choice(const std::vector<std::string>& choices, Productions& p) {
    if (choices.empty()) refuse("", "choice", "the list of choices is empty");
    std::vector<ExprId> ways;
    for (const std::string& c : choices) {
        std::string clean;
        for (const uint32_t u : code_points(c)) {
            if (u >= kMarkerBase)
                refuse("", "choice", "a choice holds a character that stands for no text");
            clean += utf8_of(u);
        }
        if (clean != c) refuse("", "choice", "a choice is not valid UTF-8");
        ways.push_back(p.literal(c));
    }
    return p.choice(std::move(ways));
}

std::string marked_text(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
        bool found = false;
        for (uint32_t m = 0; m < std::size(kMarkers) && !found; ++m) {
            const std::string_view spelling = kMarkers[m];
            if (text.compare(i, spelling.size(), spelling) != 0) continue;
            out += utf8_of(kMarkerBase + m);
            i += spelling.size();
            found = true;
        }
        if (!found) out += text[i++];
    }
    return out;
}

ExprId text_with_markers(const std::string& text, Productions& p) {
    return p.literal(marked_text(text));
}

Lowered lower(const StructuredOutputArgs& args, const Limits& limits) {
    using Type = StructuredOutputArgs::Type;
    Lowered out;
    Productions& p = out.productions;
    ExprId e = -1;
    switch (args.type) {
        case Type::kNone:
            refuse("", "", "there is no constraint");
        case Type::kRegex:
            e = lower_regex(args.value, "", p, limits);
            break;
        case Type::kJson:
            e = lower_schema(args.value, args, p, &out.notes, limits);
            break;
        case Type::kJsonObject:
            e = lower_schema(R"({"type":"object"})", args, p, &out.notes, limits);
            break;
        case Type::kEbnf:
            e = lower_ebnf(args.value, "", p, limits);
            break;
        case Type::kChoice:
            e = lower_choice(args.choices, p);
            break;
        case Type::kStructuralTag:
            e = lower_structural_tag(args.value, args, p, &out.notes, limits);
            break;
    }
    p.set_root(p.rule("start", e));
    if (!p.prune()) refuse("", "", "no text satisfies the constraint");
    const size_t size = p.size();
    if (size > limits.grammar_size) {
        refuse("",
               "",
               "the constraint needs about " + std::to_string(size) +
                   " automaton states, at most " + std::to_string(limits.grammar_size) +
                   " are taken");
    }
    out.ebnf = p.to_ebnf();
    return out;
}

}  // namespace deepinfer::grammar
