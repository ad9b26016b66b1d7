// JsonWriter: productions of JSON text for the forms of a schema.
//
// Compact or with blanks (at most kMostBlanks in a row, never two runs side by side). Members stand
// in declared order, others behind them. Strings may spell any character allowed in JSON; \u
// escapes are written only where every character is allowed and for control characters.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "grammar/production.h"
#include "grammar/schema_algebra.h"

namespace deepinfer::grammar {

/// Pieces of JSON text that do not depend on a schema.
class JsonText {
  public:
    static constexpr int kMostBlanks = 20;
    /// Strings whose length is bounded by more than this have no escapes in the counted part: the
    /// library counts characters of a class without a state for each, but nothing else.
    static constexpr int64_t kCountedWithEscapes = 12;

    /// between_markup: the text stands between markers of tool calls, which their parser finds by
    /// their spelling, token or not; so no string spells one (U+FF5C is written as an escape).
    JsonText(Productions& p, bool any_whitespace, bool between_markup)
        : p_(p), any_whitespace_(any_whitespace), between_markup_(between_markup) {}

    /// The spellings that are offered for one character of a string whose value is in `set`.
    std::vector<ExprId> character(const CharSet& set);
    ExprId any_string();
    /// A string of min to max characters (max kNoMax: any number).
    ExprId bounded_string(int64_t min, int64_t max);
    ExprId string_of(const Automaton& language);
    /// Its JSON text.
    std::string quoted(const std::string& value) const;
    ExprId any_number();
    ExprId any_integer();
    ExprId blanks();
    ExprId comma();
    ExprId colon();
    Productions& productions() { return p_; }

  private:
    CharSet must_be_escaped() const;
    ExprId shared(RuleId* rule, const char* name, ExprId (JsonText::*body)());
    ExprId any_escape();
    ExprId tail_body();
    ExprId string_body();
    /// At most `max` further characters, at least `min`, and the closing quote.
    ExprId bounded_tail(int64_t min, int64_t max);
    ExprId number_body();
    ExprId integer_body();
    ExprId blanks_body();

    Productions& p_;
    const bool any_whitespace_, between_markup_;
    std::map<std::pair<int64_t, int64_t>, RuleId> tails_;
    RuleId tail_ = -1, escape_ = -1, string_ = -1, number_ = -1, integer_ = -1, blanks_ = -1;
};

class JsonWriter {
  public:
    JsonWriter(SchemaAlgebra& algebra, Productions& p, bool any_whitespace, bool between_markup);

    /// The rule of the whole schema's values.
    RuleId whole();
    /// The arguments of a call in DSML (prompt format V4.1): one parameter element per member,
    /// string values as raw text, others as JSON. Only objects of the schema count.
    ExprId parameters();
    /// An expression for the values of one place.
    ExprId value(const Conjunction& c);
    /// The same for forms that stand alone.
    ExprId forms(const Forms& f);
    /// Writes what has been referred to so far. Call once, last.
    void finish();
    JsonText& text() { return text_; }

  private:
    ExprId parameter(ExprId name, const Conjunction& c);
    ExprId parameter_list(const MemberForm& form);
    ExprId raw_text(const StringPart& part);
    ExprId number(const NumberPart& part);
    ExprId string(const StringPart& part);
    ExprId array(const ItemForm& form);
    ExprId plain_array(const ItemForm& form);
    ExprId counted_array(const ItemForm& form);
    ExprId distinct_array(const ItemForm& form);
    ExprId object(const MemberForm& form);
    std::vector<std::pair<Automaton, Conjunction>> open_keys(const MemberForm& form);
    /// Values as JSON text.
    bool finite_values(const Conjunction& c, size_t most, std::vector<std::string>* out);

    SchemaAlgebra& algebra_;
    Productions& p_;
    JsonText text_;
    std::map<Conjunction, RuleId> rules_;
    std::vector<Conjunction> open_;
};

}  // namespace deepinfer::grammar
