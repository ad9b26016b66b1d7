// Masks against an Earley recogniser of the test's own: on random grammars over a toy vocabulary a
// bit is set exactly if the prefix with that token can still be completed, the end bit exactly if
// it is a word. Rollback, reasoning in front, special tokens, time that is spent.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/work_budget.h"
#include "deepinfer/structured_output.h"
#include "grammar/lowering.h"
#include "grammar/token_matcher.h"

namespace deepinfer::grammar {
namespace {

using Type = StructuredOutputArgs::Type;

/// Rules of single letters (terminals) and numbers ≥ 256 (rules).
struct Bnf {
    std::map<int, std::vector<std::vector<int>>> rules;
    int next = 300;
};

struct RandomGrammar {
    std::mt19937 random;
    Bnf bnf;
    int pick(int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); }

    /// Text of an element and its symbol in plain BNF.
    std::string element(int num_rules, int* symbol) {
        const int rule = bnf.next++;
        *symbol = rule;
        std::string text;
        switch (pick(4)) {
            case 0: {
                std::vector<int> word;
                text = "\"";
                for (int i = 1 + pick(2); i > 0; --i) {
                    const char c = static_cast<char>('a' + pick(3));
                    text += c;
                    word.push_back(c);
                }
                text += "\"";
                bnf.rules[rule] = {word};
                break;
            }
            case 1:
                text = "[ab]";
                bnf.rules[rule] = {{'a'}, {'b'}};
                break;
            case 2:
                text = "[^b\\n]";
                bnf.rules[rule] = {};
                for (const char c : {'a', 'c', 'x', 'y', 'z', '!', '~'})
                    bnf.rules[rule].push_back({c});
                break;
            default: {
                const int target = pick(num_rules);
                text = "r" + std::to_string(target);
                bnf.rules[rule] = {{256 + target}};
            }
        }
        const int inner = rule;
        const int outer = bnf.next;
        switch (pick(6)) {
            case 0:
                text += "*";
                bnf.rules[outer] = {{}, {outer, inner}};
                break;
            case 1:
                text += "?";
                bnf.rules[outer] = {{}, {inner}};
                break;
            case 2:
                text += "{1,3}";
                bnf.rules[outer] = {{inner}, {inner, inner}, {inner, inner, inner}};
                break;
            default:
                return text;
        }
        ++bnf.next;
        *symbol = outer;
        return text;
    }

    std::string make() {
        const int num_rules = 2 + pick(3);
        std::string text = "root ::= r0\n";
        for (int r = 0; r < num_rules; ++r) {
            text += "r" + std::to_string(r) + " ::= ";
            for (int a = 0; a < 1 + pick(3); ++a) {
                if (a > 0) text += " | ";
                std::vector<int> sequence;
                for (int e = 0; e < 1 + pick(3); ++e) {
                    int symbol = 0;
                    text += element(num_rules, &symbol) + " ";
                    sequence.push_back(symbol);
                }
                bnf.rules[256 + r].push_back(sequence);
            }
            text += "\n";
        }
        return text;
    }
};

/// Earley's recogniser over plain BNF whose unproductive alternatives are gone.
class Earley {
  public:
    explicit Earley(const Bnf& bnf) {
        std::set<int> good;
        const auto fine = [&](const std::vector<int>& alternative) {
            for (const int s : alternative) {
                if (s >= 256 && !good.count(s)) return false;
            }
            return true;
        };
        for (bool changed = true; changed;) {
            changed = false;
            for (const auto& [rule, alternatives] : bnf.rules) {
                if (good.count(rule)) continue;
                for (const auto& a : alternatives) {
                    if (!fine(a)) continue;
                    good.insert(rule);
                    changed = true;
                    break;
                }
            }
        }
        for (const auto& [rule, alternatives] : bnf.rules) {
            for (const auto& a : alternatives) {
                if (fine(a)) rules_[rule].push_back(a);
            }
        }
        for (bool changed = true; changed;) {
            changed = false;
            for (const auto& [rule, alternatives] : rules_) {
                for (const auto& a : alternatives) {
                    const bool empty = std::all_of(
                        a.begin(), a.end(), [&](int s) { return s >= 256 && nullable_.count(s); });
                    if (empty) changed |= nullable_.insert(rule).second;
                }
            }
        }
        productive_ = good.count(256) > 0;
        chart_.emplace_back();
        if (productive_) {
            for (size_t a = 0; a < rules_[256].size(); ++a) chart_[0].insert({256, a, 0, 0});
        }
        close(0);
    }
    bool productive() const { return productive_; }
    /// Advances by the bytes; false: no word has this prefix (the state is then as before).
    bool push(const std::string& text) {
        const size_t before = chart_.size();
        for (const char c : text) {
            std::set<Item> next;
            for (const Item& i : chart_.back()) {
                const auto& body = rules_[i.rule][i.alternative];
                if (i.dot < body.size() && body[i.dot] == static_cast<uint8_t>(c))
                    next.insert({i.rule, i.alternative, i.dot + 1, i.origin});
            }
            if (next.empty()) {
                chart_.resize(before);
                return false;
            }
            chart_.push_back(next);
            close(chart_.size() - 1);
        }
        return true;
    }
    void pop(size_t bytes) { chart_.resize(chart_.size() - bytes); }
    bool word() const {
        for (const Item& i : chart_.back()) {
            if (i.rule == 256 && i.origin == 0 && i.dot == rules_.at(256)[i.alternative].size())
                return true;
        }
        return false;
    }

  private:
    struct Item {
        int rule;
        size_t alternative, dot, origin;
        bool operator<(const Item& o) const {
            return std::tie(rule, alternative, dot, origin) <
                   std::tie(o.rule, o.alternative, o.dot, o.origin);
        }
    };
    /// Worklist closure; a rule that derives nothing is passed over when it is predicted, so that
    /// items completed where they began need no second look.
    void close(size_t at) {
        std::vector<Item> open(chart_[at].begin(), chart_[at].end());
        const auto add = [&](const Item& i) {
            if (chart_[at].insert(i).second) open.push_back(i);
        };
        while (!open.empty()) {
            const Item i = open.back();
            open.pop_back();
            const auto& body = rules_[i.rule][i.alternative];
            if (i.dot < body.size()) {
                if (body[i.dot] < 256) continue;
                const auto& bodies = rules_[body[i.dot]];
                for (size_t a = 0; a < bodies.size(); ++a) add({body[i.dot], a, 0, at});
                if (nullable_.count(body[i.dot])) add({i.rule, i.alternative, i.dot + 1, i.origin});
                continue;
            }
            if (i.origin == at) continue;
            for (const Item& w :
                 std::vector<Item>(chart_[i.origin].begin(), chart_[i.origin].end())) {
                const auto& waiting = rules_[w.rule][w.alternative];
                if (w.dot < waiting.size() && waiting[w.dot] == i.rule)
                    add({w.rule, w.alternative, w.dot + 1, w.origin});
            }
        }
    }
    std::set<int> nullable_;
    std::map<int, std::vector<std::vector<int>>> rules_;
    std::vector<std::set<Item>> chart_;
    bool productive_ = false;
};

/// All texts over abc up to three letters, some longer ones, a special token, an end token.
std::vector<std::string> toy_tokens(int32_t* eos) {
    std::vector<std::string> tokens = {""};
    for (size_t i = 0; i < tokens.size() && tokens[i].size() < 3; ++i) {
        for (const char c : {'a', 'b', 'c'}) tokens.push_back(tokens[i] + c);
    }
    for (const char* t : {"aaaa", "abab", "bbbbb", "x", "y", "ab\n", "\n", "z!", "cabca", "~"})
        tokens.emplace_back(t);
    *eos = static_cast<int32_t>(tokens.size());
    tokens.emplace_back();
    return tokens;
}

bool bit(const std::vector<uint32_t>& words, size_t v) {
    return (words[v / 32] >> (v % 32) & 1) != 0;
}

TEST(Masks, EqualTheRecogniserOnRandomGrammars) {
    int32_t eos = 0;
    const std::vector<std::string> tokens = toy_tokens(&eos);
    const auto vocabulary = Vocabulary::of_tokens(tokens, eos);
    int productive = 0, checked = 0;
    for (uint32_t seed = 1; seed <= 70; ++seed) {
        RandomGrammar g;
        g.random.seed(seed);
        const std::string text = g.make();
        Earley earley(g.bnf);
        std::string ebnf;
        try {
            ebnf = lower(StructuredOutputArgs::of(Type::kEbnf, text)).ebnf;
        } catch (const Refusal& r) {
            EXPECT_FALSE(earley.productive()) << text << r.reason;
            continue;
        }
        ASSERT_TRUE(earley.productive()) << text;
        ++productive;
        const auto compiled = CompiledGrammar::compile(vocabulary, ebnf, 1);
        ASSERT_TRUE(compiled.ok()) << compiled.status().message() << text;
        TokenMatcher matcher(compiled.value(), false);
        for (int step = 0; step < 6; ++step) {
            const std::vector<uint32_t> mask = matcher.mask();
            std::vector<int32_t> allowed;
            for (size_t v = 0; v < tokens.size(); ++v) {
                bool want = false;
                if (static_cast<int32_t>(v) == eos) {
                    want = earley.word();
                } else if (!tokens[v].empty() && earley.push(tokens[v])) {
                    earley.pop(tokens[v].size());
                    want = true;
                }
                ASSERT_EQ(bit(mask, v), want)
                    << text << "token '" << tokens[v] << "' at step " << step << " seed " << seed;
                ++checked;
                if (want && static_cast<int32_t>(v) != eos)
                    allowed.push_back(static_cast<int32_t>(v));
            }
            ASSERT_EQ(matcher.complete(), earley.word()) << text;
            if (allowed.empty()) break;
            const int32_t next = allowed[g.random() % allowed.size()];
            ASSERT_TRUE(matcher.accept(next));
            ASSERT_TRUE(earley.push(tokens[static_cast<size_t>(next)]));
        }
    }
    EXPECT_GT(productive, 25);
    EXPECT_GT(checked, 4000);
}

std::shared_ptr<const CompiledGrammar> compile(const std::shared_ptr<const Vocabulary>& v,
                                               Type type,
                                               const std::string& value) {
    auto c = CompiledGrammar::compile(v, lower(StructuredOutputArgs::of(type, value)).ebnf, 1);
    EXPECT_TRUE(c.ok());
    return c.value();
}

TEST(TokenMatcher, RollbackIsAsIfItHadNotHappened) {
    const auto grammar =
        compile(Vocabulary::bytes(),
                Type::kJson,
                R"({"type":"object","additionalProperties":{"type":["string","integer","null"]}})");
    std::mt19937 random(5);
    TokenMatcher matcher(grammar, false);
    std::vector<std::vector<uint32_t>> masks = {matcher.mask()};
    for (int round = 0; round < 300; ++round) {
        for (auto n = random() % 70; n > 0; --n) {
            std::vector<int32_t> allowed;
            for (int32_t v = 0; v < 256; ++v) {
                if (bit(masks.back(), static_cast<size_t>(v))) allowed.push_back(v);
            }
            if (allowed.empty()) break;
            const int32_t wrong = static_cast<int32_t>(random() % 256);
            if (!bit(masks.back(), static_cast<size_t>(wrong))) {
                EXPECT_FALSE(matcher.accept(wrong));
            }
            ASSERT_TRUE(matcher.accept(allowed[random() % allowed.size()]));
            masks.push_back(matcher.mask());
        }
        const auto back = static_cast<size_t>(
            random() % std::min<size_t>(masks.size(), TokenConstraint::kMaxRollback + 1));
        matcher.rollback(static_cast<int>(back));
        masks.resize(masks.size() - back);
        ASSERT_EQ(matcher.mask(), masks.back());
    }
}

TEST(TokenMatcher, EndIsForcedAndThenNothing) {
    const auto vocabulary = Vocabulary::of_tokens({"a", "b", "ab", ""}, 3);
    TokenMatcher m(compile(vocabulary, Type::kRegex, "ab"), false);
    EXPECT_EQ(m.mask(), std::vector<uint32_t>{0b0101});
    ASSERT_TRUE(m.accept(2));
    EXPECT_TRUE(m.complete());
    EXPECT_EQ(m.mask(), std::vector<uint32_t>{0b1000});  // a single bit: no model row is needed
    EXPECT_FALSE(m.accept(0));
    ASSERT_TRUE(m.accept(3));
    EXPECT_EQ(m.mask(), std::vector<uint32_t>{0});
    EXPECT_FALSE(m.accept(3));
    m.rollback(2);
    EXPECT_EQ(m.mask(), std::vector<uint32_t>{0b0101});
}

Tokenizer tiny_tokenizer() {
    auto t = Tokenizer::load(DEEPINFER_SOURCE_DIR "/models/demo");
    EXPECT_TRUE(t.ok());
    return std::move(t).value();
}

TEST(TokenMatcher, ReasoningIsFreeAndMovesNothing) {
    const Tokenizer t = tiny_tokenizer();
    const int64_t width = t.vocab_size() + 40;  // padded logits
    const auto vocabulary = Vocabulary::of(t, width, t.eos_id());
    const int32_t close = t.id_of("</think>"), open = t.id_of("<think>");
    ASSERT_GE(close, 0);
    const auto grammar = compile(
        vocabulary,
        Type::kJson,
        R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false})");
    TokenMatcher m(grammar, true), direct(grammar, false);
    const std::vector<uint32_t> free = m.mask();
    // Calls that began in reasoning would be calls without a form.
    const int32_t calls = vocabulary->marker_id(kMarkerTool);
    ASSERT_GE(calls, 0);
    for (int32_t v = 0; v < width; ++v) {
        EXPECT_EQ(bit(free, static_cast<size_t>(v)),
                  v < t.vocab_size() && v != t.eos_id() && v != calls)
            << v;
    }
    EXPECT_FALSE(m.accept(calls));
    const std::vector<int32_t> thoughts = t.encode("{\"city\": \"Rome\"} is what I will say.");
    for (const int32_t id : thoughts) ASSERT_TRUE(m.accept(id));
    EXPECT_EQ(m.mask(), free);
    EXPECT_FALSE(m.complete());
    EXPECT_FALSE(m.accept(t.eos_id()));
    ASSERT_TRUE(m.accept(close));
    EXPECT_EQ(m.mask(), direct.mask());
    // Over the boundary and back, in the middle of a step of several tokens.
    const std::vector<int32_t> answer = t.encode("{\"city\": \"Oslo\"}");
    for (const int32_t id : answer) ASSERT_TRUE(m.accept(id));
    EXPECT_TRUE(m.complete());
    m.rollback(static_cast<int>(answer.size()) + 1);
    EXPECT_EQ(m.mask(), free);
    ASSERT_TRUE(m.accept(close));
    EXPECT_EQ(m.mask(), direct.mask());
    // No added token stands in a JSON string, padding ids nowhere.
    for (const int32_t id : t.encode("{\"city\": \"x")) ASSERT_TRUE(m.accept(id));
    const std::vector<uint32_t> inside = m.mask();
    for (int32_t v = 0; v < width; ++v) {
        if (v < t.vocab_size() && !t.is_added(v)) continue;
        EXPECT_FALSE(bit(inside, static_cast<size_t>(v))) << v;
    }
    EXPECT_TRUE(reasoning_is_open({1, open, 5}, *vocabulary));
    EXPECT_FALSE(reasoning_is_open({open, 5, close}, *vocabulary));
    EXPECT_FALSE(reasoning_is_open({5, 6}, *vocabulary));
}

TEST(TokenMatcher, MarkersAreTokensAndTheirSpellingIsText) {
    const Tokenizer t = tiny_tokenizer();
    const auto vocabulary = Vocabulary::of(t, t.vocab_size(), t.eos_id());
    const int32_t marker = vocabulary->marker_id(kMarkerTool);
    ASSERT_GE(marker, 0);
    const auto grammar = compile(
        vocabulary,
        Type::kStructuralTag,
        R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<｜DSML｜"],"tags":[{"type":"tag","begin":"<｜DSML｜ a>","content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</｜DSML｜ a>"}]}})");
    TokenMatcher m(grammar, false);
    for (const int32_t id : t.encode("Free text, 5 < 6. <")) ASSERT_TRUE(m.accept(id));
    EXPECT_TRUE(m.complete());
    ASSERT_TRUE(m.accept(marker));
    EXPECT_FALSE(m.complete());
    for (const int32_t id : t.encode(" a>12</")) ASSERT_TRUE(m.accept(id));
    ASSERT_TRUE(m.accept(marker));
    for (const int32_t id : t.encode(" a>")) ASSERT_TRUE(m.accept(id));
    EXPECT_TRUE(m.complete());
}

TEST(TokenMatcher, WorkThatIsSpentAllowsNothingAnyMore) {
    // Ambiguous: what a token costs grows with the square of the text.
    const auto grammar =
        compile(Vocabulary::bytes(), Type::kEbnf, "root ::= root root | \"a\" | \"\"");
    TokenMatcher m(grammar, false);
    WorkBudget budget(30'000'000);
    {
        const WorkBudget::Scope scope(&budget);
        constexpr int kMost = 20'000;
        int taken = 0;
        while (taken < kMost && m.accept('a')) ++taken;
        EXPECT_GT(taken, 10);
        EXPECT_LT(taken, kMost);
    }
    EXPECT_TRUE(budget.over());
    EXPECT_LT(budget.spent_ns(), 300'000'000);
    EXPECT_EQ(m.mask(), std::vector<uint32_t>(9, 0));
    EXPECT_FALSE(m.accept('a'));
    EXPECT_FALSE(m.complete());
    m.rollback(1);
    EXPECT_EQ(m.mask(), std::vector<uint32_t>(9, 0));
}

}  // namespace
}  // namespace deepinfer::grammar
