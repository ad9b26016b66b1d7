// Automaton: a deterministic finite automaton over code points, and what can be asked of its
// language.
//
// Strings and numbers of a schema are such languages, so that "this pattern, at most five
// characters, not one of these" is an intersection and not a guess. Missing edges lead nowhere (the
// word is out).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/production.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {

enum class SetOperation { kAnd, kOr, kMinus };

class Automaton {
  public:
    struct Edge {
        uint32_t lo = 0, hi = 0;  ///< both included
        int32_t to = 0;
    };
    struct State {
        std::vector<Edge> edges;  ///< ascending, disjoint
        bool accept = false;
    };

    /// The words that match `r` as a whole (full) or somewhere in them (search). Refuses more than
    /// limits.automaton_states states or automaton_edges edges.
    static Automaton full(const Regex& r, const Limits& limits);
    static Automaton search(const Regex& r, const Limits& limits);
    static Automaton words(const std::vector<std::string>& words, const Limits& limits);
    /// min to max characters; max < 0: without end.
    static Automaton length(int64_t min, int64_t max, const Limits& limits);
    static Automaton everything();
    static Automaton nothing();
    /// From states made by hand; state 0 is the start.
    static Automaton of(std::vector<State> states, const Limits& limits);

    Automaton combine(const Automaton& other, SetOperation op, const Limits& limits) const;
    Automaton complement(const Limits& limits) const;

    bool accepts(const std::string& word) const;
    bool empty() const { return states_.empty(); }
    /// The number of words if at most `most`.
    std::optional<size_t> count(size_t most) const;
    /// All words of a finite language, ascending by length. Requires count().
    std::vector<std::string> list(size_t most) const;
    size_t num_states() const { return states_.size(); }
    const std::vector<State>& states() const { return states_; }

    /// The productions of the language; `one` makes the expressions of one character set (its
    /// spellings, all different), `end` stands behind every word.
    template <typename OneSet>
    ExprId expr(Productions& p, const OneSet& one, ExprId end, const std::string& name) const;

  private:
    /// Groups a state's edges by target.
    std::map<int32_t, CharSet> by_target(size_t state) const;
    /// Removes states that are not reached or from which no word ends, joins equal ones; state 0 is
    /// the start. No state at all: the empty language.
    void minimise();
    std::vector<int> entries() const;

    std::vector<State> states_;
};

/// Writes one automaton. A state entered from one place is written there, any other is a rule. A
/// set that has several spellings (JSON escapes) is written as so many ways into a rule: whole
/// tokens then stay inside one right-recursive rule, which is what their masks are computed for
/// beforehand.
template <typename OneSet>
class AutomatonWriter {
  public:
    AutomatonWriter(Productions& p,
                    const OneSet& one,
                    ExprId end,
                    std::string name,
                    const std::vector<std::map<int32_t, CharSet>>& targets,
                    const std::vector<bool>& accept,
                    const std::vector<int>& entries)
        : p_(p),
          one_(one),
          end_(end),
          name_(std::move(name)),
          targets_(targets),
          accept_(accept),
          entries_(entries),
          rules_(targets.size(), -1) {}

    ExprId whole() {
        const ExprId start = state(0, 0);
        while (!open_.empty()) {
            const int32_t s = open_.back();
            open_.pop_back();
            p_.set_body(rules_[static_cast<size_t>(s)], body(s, 0));
        }
        return start;
    }

  private:
    static constexpr int kMostNested = 24;

    ExprId rule_of(int32_t s) {
        const auto i = static_cast<size_t>(s);
        if (rules_[i] < 0) {
            rules_[i] = p_.add_rule(name_);
            open_.push_back(s);
        }
        return p_.ref(rules_[i]);
    }
    ExprId state(int32_t s, int nested) {
        const auto i = static_cast<size_t>(s);
        if (targets_[i].empty()) return end_;
        const auto loop = targets_[i].find(s);
        const bool recursive = loop != targets_[i].end() && one_(loop->second).size() > 1;
        if (rules_[i] < 0 && nested < kMostNested && entries_[i] <= 1 && !recursive)
            return body(s, nested);
        return rule_of(s);
    }
    ExprId body(int32_t s, int nested) {
        const auto i = static_cast<size_t>(s);
        std::vector<ExprId> ways;
        ExprId loop = -1;
        for (const auto& [to, set] : targets_[i]) {
            const std::vector<ExprId> spellings = one_(set);
            if (to == s && spellings.size() == 1) {
                loop = p_.repeat(spellings[0], 0, kNoMax);
                continue;
            }
            if (spellings.size() == 1) {
                ways.push_back(p_.sequence({spellings[0], state(to, nested + 1)}));
                continue;
            }
            const ExprId then = targets_[static_cast<size_t>(to)].empty() ? end_ : rule_of(to);
            for (const ExprId e : spellings) ways.push_back(p_.sequence({e, then}));
        }
        if (accept_[i]) ways.push_back(end_);
        const ExprId rest = p_.choice(std::move(ways));
        return loop < 0 ? rest : p_.sequence({loop, rest});
    }

    Productions& p_;
    const OneSet& one_;
    const ExprId end_;
    const std::string name_;
    const std::vector<std::map<int32_t, CharSet>>& targets_;
    const std::vector<bool>& accept_;
    const std::vector<int>& entries_;
    std::vector<RuleId> rules_;
    std::vector<int32_t> open_;
};

template <typename OneSet>
ExprId Automaton::expr(Productions& p,
                       const OneSet& one,
                       ExprId end,
                       const std::string& name) const {
    if (empty()) return p.never();
    std::vector<std::map<int32_t, CharSet>> targets;
    std::vector<bool> accept;
    for (size_t i = 0; i < states_.size(); ++i) {
        targets.push_back(by_target(i));
        accept.push_back(states_[i].accept);
    }
    return AutomatonWriter<OneSet>(p, one, end, name, targets, accept, entries()).whole();
}

}  // namespace deepinfer::grammar
