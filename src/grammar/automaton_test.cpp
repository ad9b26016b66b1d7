// Automata against brute force: every word up to six letters, set operations word by word, number
// conditions against exact arithmetic, regular expressions against a backtracking matcher.
#include "grammar/automaton.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "grammar/value_language.h"

namespace deepinfer::grammar {
namespace {

const Limits kLimits;

std::vector<std::string> words_up_to(size_t most, const std::string& letters) {
    std::vector<std::string> out = {""};
    for (size_t i = 0; i < out.size() && out[i].size() < most; ++i) {
        for (const char c : letters) out.push_back(out[i] + c);
    }
    return out;
}

/// All ends of matches of `r` in `text` from `at`: the plain meaning, no automaton.
std::vector<size_t> ends_of(const Regex& r, const std::string& text, size_t at) {
    std::vector<bool> hit(text.size() + 1, false);
    const auto add = [&](const std::vector<size_t>& list) {
        for (const size_t e : list) hit[e] = true;
    };
    switch (r.kind) {
        case Regex::Kind::kEmpty:
            hit[at] = true;
            break;
        case Regex::Kind::kBegin:
            hit[at] = at == 0;
            break;
        case Regex::Kind::kEnd:
            hit[at] = at == text.size();
            break;
        case Regex::Kind::kChars:
            if (at < text.size() && r.set.contains(static_cast<uint8_t>(text[at])))
                hit[at + 1] = true;
            break;
        case Regex::Kind::kAlternate:
            for (const Regex& p : r.parts) add(ends_of(p, text, at));
            break;
        case Regex::Kind::kConcat: {
            std::vector<size_t> from = {at};
            for (const Regex& p : r.parts) {
                std::vector<bool> next(text.size() + 1, false);
                for (const size_t f : from) {
                    for (const size_t e : ends_of(p, text, f)) next[e] = true;
                }
                from.clear();
                for (size_t i = 0; i < next.size(); ++i) {
                    if (next[i]) from.push_back(i);
                }
            }
            add(from);
            break;
        }
        case Regex::Kind::kRepeat: {
            const int most = r.max == kNoMax ? r.min + static_cast<int>(text.size()) + 1 : r.max;
            std::vector<size_t> from = {at};
            for (int i = 0; i <= most && !from.empty(); ++i) {
                if (i >= r.min) add(from);
                std::vector<bool> next(text.size() + 1, false);
                for (const size_t f : from) {
                    for (const size_t e : ends_of(r.parts[0], text, f)) next[e] = true;
                }
                from.clear();
                for (size_t k = 0; k < next.size(); ++k) {
                    if (next[k]) from.push_back(k);
                }
            }
            break;
        }
    }
    std::vector<size_t> out;
    for (size_t i = 0; i < hit.size(); ++i) {
        if (hit[i]) out.push_back(i);
    }
    return out;
}

bool matches_somewhere(const Regex& r, const std::string& text) {
    for (size_t i = 0; i <= text.size(); ++i) {
        if (!ends_of(r, text, i).empty()) return true;
    }
    return false;
}

TEST(Automaton, EqualsTheMeaningOfTheExpression) {
    const char* patterns[] = {"a",       "",         "a*b?",        "(a|bb)+", "^a",
                              "b$",      "^$",       "^a|b$",       "(^|b)a",  "a($|b)",
                              "a{2,3}",  "(ab?){2}", "(a?){4}a{2}", "[^a]",    "x?^a",
                              "(a|^b)*", "(?:a*)*b", "a{0}",        "(|a)b",   "^(a|b)*?ab$"};
    for (const char* pattern : patterns) {
        const Regex r = parse_regex(pattern, "");
        const Automaton search = Automaton::search(r, kLimits), full = Automaton::full(r, kLimits);
        for (const std::string& w : words_up_to(6, "ab")) {
            EXPECT_EQ(search.accepts(w), matches_somewhere(r, w)) << pattern << " in " << w;
            const std::vector<size_t> ends = ends_of(r, w, 0);
            EXPECT_EQ(full.accepts(w), !ends.empty() && ends.back() == w.size())
                << pattern << " = " << w;
        }
    }
}

TEST(Automaton, SetOperationsWordByWord) {
    const char* patterns[] = {"^a*b*$", "ab", "^(..)*$", "b.b", "^[^b]{2,}$", "^$"};
    for (const char* p : patterns) {
        for (const char* q : patterns) {
            const Automaton a = Automaton::search(parse_regex(p, ""), kLimits),
                            b = Automaton::search(parse_regex(q, ""), kLimits);
            const Automaton both = a.combine(b, SetOperation::kAnd, kLimits),
                            any = a.combine(b, SetOperation::kOr, kLimits);
            const Automaton only = a.combine(b, SetOperation::kMinus, kLimits),
                            none = a.complement(kLimits);
            for (const std::string& w : words_up_to(6, "abc")) {
                const bool in_a = a.accepts(w), in_b = b.accepts(w);
                ASSERT_EQ(both.accepts(w), in_a && in_b) << p << " " << q << " " << w;
                ASSERT_EQ(any.accepts(w), in_a || in_b) << p << " " << q << " " << w;
                ASSERT_EQ(only.accepts(w), in_a && !in_b) << p << " " << q << " " << w;
                ASSERT_EQ(none.accepts(w), !in_a) << p << " " << w;
            }
        }
    }
}

TEST(Automaton, CountsAndListsFiniteLanguages) {
    const Automaton a = Automaton::full(parse_regex("a{0,2}(b|c)", ""), kLimits);
    EXPECT_EQ(a.count(10), 6u);
    EXPECT_EQ(a.list(10), (std::vector<std::string>{"b", "c", "ab", "ac", "aab", "aac"}));
    EXPECT_EQ(a.count(5), std::nullopt);
    EXPECT_EQ(Automaton::full(parse_regex("a*", ""), kLimits).count(1000), std::nullopt);
    EXPECT_EQ(Automaton::nothing().count(1), 0u);
    EXPECT_TRUE(a.combine(a, SetOperation::kMinus, kLimits).empty());
    EXPECT_EQ(Automaton::everything().complement(kLimits).num_states(), 0u);
}

TEST(Automaton, RefusesWhatIsTooLarge) {
    EXPECT_THROW(Automaton::search(parse_regex("a.{20}b", ""), kLimits), Refusal);
    EXPECT_THROW(Automaton::length(0, 100000, kLimits), Refusal);
    EXPECT_THROW(Automaton::full(parse_regex("((a{100}){100}){100}", ""), kLimits), Refusal);
}

TEST(Numbers, ConditionsAgreeWithExactComparison) {
    std::vector<std::string> texts;
    for (const char* whole : {"0", "1", "2", "9", "10", "12", "19", "99", "100", "123"}) {
        for (const char* fraction : {"", ".0", ".5", ".05", ".25", ".250", ".9", ".99", ".001"}) {
            texts.push_back(std::string(whole) + fraction);
            Decimal d;
            ASSERT_TRUE(Decimal::parse(texts.back(), &d));
            if (!d.zero()) texts.push_back("-" + texts.back());
        }
    }
    for (const char* bound : {"0",
                              "1",
                              "-1",
                              "10",
                              "9.9",
                              "0.05",
                              "-0.25",
                              "12.25",
                              "-99",
                              "100",
                              "1e2",
                              "25e-2",
                              "-12.001"}) {
        Decimal b;
        ASSERT_TRUE(Decimal::parse(bound, &b));
        const SharedAutomaton ge = number_at_least(b, false, kLimits),
                              gt = number_at_least(b, true, kLimits);
        const SharedAutomaton le = number_at_most(b, false, kLimits),
                              lt = number_at_most(b, true, kLimits);
        const SharedAutomaton eq = number_equals(b, kLimits), ne = number_not(eq, kLimits);
        for (const std::string& t : texts) {
            Decimal d;
            ASSERT_TRUE(Decimal::parse(t, &d));
            const int c = compare(d, b);
            EXPECT_EQ(ge->accepts(t), c >= 0) << t << " >= " << bound;
            EXPECT_EQ(gt->accepts(t), c > 0) << t << " > " << bound;
            EXPECT_EQ(le->accepts(t), c <= 0) << t << " <= " << bound;
            EXPECT_EQ(lt->accepts(t), c < 0) << t << " < " << bound;
            EXPECT_EQ(eq->accepts(t), c == 0) << t << " = " << bound;
            EXPECT_EQ(ne->accepts(t), c != 0) << t << " != " << bound;
        }
    }
}

TEST(Numbers, MultiplesByDigits) {
    const struct {
        const char* step;
        int64_t units, per_one;  // step = units / per_one
    } steps[] = {{"1", 1000, 1000},
                 {"2", 2000, 1000},
                 {"7", 7000, 1000},
                 {"0.5", 500, 1000},
                 {"0.01", 10, 1000},
                 {"1.5", 1500, 1000},
                 {"0.075", 75, 1000},
                 {"10", 10000, 1000}};
    for (const auto& s : steps) {
        Decimal step;
        ASSERT_TRUE(Decimal::parse(s.step, &step));
        const SharedAutomaton a = number_multiple_of(step, kLimits);
        for (int64_t thousandths = -3000; thousandths <= 3000; thousandths += 5) {
            Decimal d = Decimal::of(thousandths);
            d.exponent -= d.zero() ? 0 : 3;
            EXPECT_EQ(a->accepts(d.text()), thousandths % s.units == 0)
                << d.text() << " of " << s.step;
        }
        EXPECT_FALSE(a->accepts("0.0001"));
        EXPECT_TRUE(a->accepts("0"));
        EXPECT_FALSE(a->accepts("-0"));
    }
}

TEST(Regexes, RefusesByNameAndPosition) {
    const struct {
        const char* pattern;
        const char* said;
    } rows[] = {{"(", "group"},
                {"a)", "unmatched"},
                {"a{2,1}", "{2,1}"},
                {"(?=a)", "look-around"},
                {"(?<!a)b", "look-around"},
                {"\\1", "backreference"},
                {"(?P=x)", "backreference"},
                {"\\bx", "word bound"},
                {"a**", "nothing to repeat"},
                {"*a", "nothing to repeat"},
                {"a++", "possessive"},
                {"(?>a)", "atomic"},
                {"(?i)a", "flags"},
                {"[b-a]", "order"},
                {"[a", "']'"},
                {"\\q", "\\q"},
                {"\\p{Greek}", "general categories"},
                {"\\ud800", "no character"},
                {"a{100001}", "100000"},
                {"[[:alpha:]]", "POSIX"},
                {"\\", "lone"}};
    for (const auto& row : rows) {
        try {
            parse_regex(row.pattern, "/pattern");
            ADD_FAILURE() << row.pattern << " was taken";
        } catch (const Refusal& r) {
            EXPECT_NE(r.reason.find(row.said), std::string::npos)
                << row.pattern << ": " << r.reason;
            EXPECT_NE(r.reason.find("character "), std::string::npos) << r.reason;
        }
    }
    std::string deep(100, '(');
    EXPECT_THROW(parse_regex(deep + "a" + std::string(100, ')'), ""), Refusal);
}

}  // namespace
}  // namespace deepinfer::grammar
