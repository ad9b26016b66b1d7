// Languages of numbers and strings: conditions on values as automata over their text.
//
// Numbers are written here without exponent: -?(0|[1-9]d*)(.d+)?, no negative zero. A condition
// holds for a value, so every automaton takes all spellings of a value (1, 1.0, 1.00) or none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/json_tree.h"

namespace deepinfer::grammar {

using SharedAutomaton = std::shared_ptr<const Automaton>;

/// Every number without exponent.
SharedAutomaton number_spelling();
/// value >= bound, > bound, <= bound, < bound.
SharedAutomaton number_at_least(const Decimal& bound, bool strict, const Limits& limits);
SharedAutomaton number_at_most(const Decimal& bound, bool strict, const Limits& limits);
SharedAutomaton number_equals(const Decimal& value, const Limits& limits);
SharedAutomaton number_multiple_of(const Decimal& step, const Limits& limits);
SharedAutomaton number_is_integer(const Limits& limits);
/// Numbers that do not satisfy the condition.
SharedAutomaton number_not(const SharedAutomaton& condition, const Limits& limits);

/// One kind of number values: all conditions hold together.
struct NumberPart {
    bool integer = false;
    std::optional<std::vector<Decimal>> list;  ///< only these
    std::vector<SharedAutomaton> conditions;

    bool plain() const { return !integer && !list && conditions.empty(); }
    NumberPart with(const NumberPart& o) const;
    /// The automaton of all conditions; for integers without fraction. Not for lists.
    Automaton language(const Limits& limits) const;
    /// Members of the list that satisfy the conditions.
    std::vector<Decimal> values() const;
};

/// One kind of string values.
struct StringPart {
    static constexpr int64_t kNoEnd = -1;
    std::optional<std::vector<std::string>> list;
    int64_t min = 0, max = kNoEnd;  ///< characters
    std::vector<SharedAutomaton> conditions;

    bool plain() const { return !list && min == 0 && max == kNoEnd && conditions.empty(); }
    StringPart with(const StringPart& o) const;
    bool accepts(const std::string& value) const;
    std::vector<std::string> values() const;
    /// Conditions and length together. Not for lists; refuses lengths beyond the automaton limit.
    Automaton language(const Limits& limits) const;
};

/// The regular expression of a `format`, or nullopt: not one that is enforced.
std::optional<std::string> format_pattern(const std::string& format);

}  // namespace deepinfer::grammar
