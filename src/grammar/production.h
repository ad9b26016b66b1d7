// Productions: the one form that every kind of constraint is lowered to before it is compiled.
//
// A context-free grammar over Unicode text: literals, character classes, sequences, alternatives,
// repetitions and rules. Regex, JSON Schema, EBNF, choice and structural tags all end here;
// to_ebnf() writes it for XGrammar. Expressions are ids into the Productions that made them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/refusal.h"

namespace deepinfer::grammar {

using ExprId = int32_t;
using RuleId = int32_t;
constexpr int kNoMax = -1;

class Productions {
  public:
    ExprId literal(std::string text);  ///< "" is the empty word
    ExprId empty() { return literal(""); }
    ExprId chars(CharSet set);  ///< one of these; an empty set is the expression without a word
    ExprId sequence(std::vector<ExprId> parts);
    ExprId choice(std::vector<ExprId> alternatives);  ///< none: the expression without a word
    ExprId never() { return choice({}); }
    ExprId repeat(ExprId part, int min, int max);  ///< max kNoMax: without end
    ExprId optional(ExprId part) { return repeat(part, 0, 1); }
    ExprId ref(RuleId rule);
    /// Literal bytes of a marker token (markers.h): never text.
    ExprId marker(int index) {
        return literal(utf8_of(kMarkerBase + static_cast<uint32_t>(index)));
    }

    RuleId add_rule(std::string name_hint);  ///< its body must be set before use
    void set_body(RuleId rule, ExprId body) { rules_[static_cast<size_t>(rule)].body = body; }
    RuleId rule(std::string name_hint, ExprId body);
    void set_root(RuleId rule) { root_ = rule; }
    RuleId root() const { return root_; }
    size_t num_rules() const { return rules_.size(); }
    /// Whether some finite word can be derived from each rule.
    std::vector<bool> productive_rules() const;
    bool is_never(ExprId e) const { return at(e).kind == Kind::kChoice && at(e).parts.empty(); }

    /// Removes alternatives that derive nothing and rules that are not reached. False: the root
    /// derives no finite word. Repetitions with huge counts of nothing but the empty word collapse.
    bool prune();

    /// States that an automaton of the pruned grammar has, about: literal characters and classes,
    /// repetitions counted as written (an unbounded or large one once: it is a counter there).
    size_t size() const;
    /// The grammar in XGrammar's EBNF, rule "root" first. Requires prune() == true.
    std::string to_ebnf() const;
    /// Deepest nesting of expressions within one rule.
    size_t depth() const;

  private:
    enum class Kind : uint8_t { kLiteral, kChars, kSequence, kChoice, kRepeat, kRef };
    struct Expr {
        Kind kind = Kind::kLiteral;
        std::string text;
        CharSet set;
        std::vector<ExprId> parts;
        int min = 0, max = 0;
        RuleId rule = -1;
    };
    struct Rule {
        std::string name;
        ExprId body = -1;
    };
    const Expr& at(ExprId e) const { return exprs_[static_cast<size_t>(e)]; }
    ExprId add(Expr e);
    bool productive(ExprId e, const std::vector<bool>& rules) const;
    ExprId pruned(ExprId e, const std::vector<bool>& rules);
    void write(ExprId e, int binding, std::string* out) const;
    size_t size_of(ExprId e) const;
    size_t depth_of(ExprId e) const;
    std::vector<bool> reached() const;
    std::string rule_name(RuleId r) const;

    std::vector<Expr> exprs_;
    std::vector<Rule> rules_;
    RuleId root_ = -1;
};

}  // namespace deepinfer::grammar
