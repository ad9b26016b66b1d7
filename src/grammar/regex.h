// Regular expressions: our dialect, its syntax tree, and the way into productions.
//
// The dialect is the common core of ECMAScript and Python without anything that is not regular:
//   literals, .  (any character but \n \r U+2028 U+2029), | * + ? {m} {m,} {m,n} and their lazy
//   forms (laziness does not change which texts match), ( ) (?: ) (?<name> ) (?P<name> ), ^ $ \A \z
//   \Z (start and end of the text; no multi-line), [...] with ranges and escapes, \d \w (ASCII) \s
//   (ECMAScript's white space) \D \W \S, \p{Category} \P{Category} (general categories, short or
//   long names), \t \n \r \f \v \0 \xHH \uHHHH \u{H…} \cX and escaped punctuation.
// Refused by name with the position: look-around, backreferences, \b \B, atomic groups, inline
// flags, possessive quantifiers, unknown escapes, repetition counts above 100,000.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/production.h"
#include "grammar/refusal.h"

namespace deepinfer::grammar {

struct Regex {
    enum class Kind { kEmpty, kChars, kConcat, kAlternate, kRepeat, kBegin, kEnd };
    Kind kind = Kind::kEmpty;
    CharSet set;
    std::vector<Regex> parts;
    int min = 0, max = 0;  ///< kRepeat; max kNoMax: without end

    static Regex empty() { return {}; }
    static Regex chars(CharSet s);
    static Regex text(const std::string& utf8);
    static Regex concat(std::vector<Regex> parts);
    static Regex alternate(std::vector<Regex> parts);
    static Regex repeat(Regex part, int min, int max);

    bool has_anchor() const;
    /// States of its automaton, about (saturates at 2^62).
    uint64_t size() const;
};

/// Throws Refusal with `pointer` (and the position in the text in its reason).
Regex parse_regex(const std::string& pattern,
                  const std::string& pointer,
                  const Limits& limits = {});

/// A general category by short or long name ("Lu", "Letter", "L"); empty if there is none such.
CharSet unicode_category(const std::string& name);

/// Whether anchors stand only where they say "the whole text" (first and last place of every
/// alternative); then they can be dropped for a full match.
bool anchors_at_ends(const Regex& r);
/// The same tree without anchors. Requires anchors_at_ends.
Regex without_anchors(Regex r);
/// Productions of a tree without anchors; `one` makes the expression of one character set.
template <typename OneSet>
ExprId regex_expr(const Regex& r, Productions& p, const OneSet& one) {
    std::vector<ExprId> parts;
    for (const Regex& part : r.parts) parts.push_back(regex_expr(part, p, one));
    switch (r.kind) {
        case Regex::Kind::kChars:
            return one(r.set);
        case Regex::Kind::kConcat:
            return p.sequence(std::move(parts));
        case Regex::Kind::kAlternate:
            return p.choice(std::move(parts));
        case Regex::Kind::kRepeat:
            return p.repeat(parts[0], r.min, r.max);
        default:
            return p.empty();
    }
}

}  // namespace deepinfer::grammar
