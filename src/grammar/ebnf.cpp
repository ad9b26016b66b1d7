// The EBNF front end. The dialect (docs/structured_outputs.md):
//
//   name ::= alternatives          rule "root" is the start; names: letters, digits, _ - . (no
//   digit first) "text" 'text'                  escapes \n \t \r \\ \" \' \0 \xHH \uHHHH \UHHHHHHHH
//   [a-z_] [^"\\] .                classes with the same escapes and \d \w \s \] \- \^ ; . is any
//   character ( )  |  * + ? {m} {m,} {m,n}   # comment
//
// An empty alternative is written "". Lookahead, rule attributes and macros are refused by name.
#include <algorithm>
#include <map>

#include "grammar/lowering.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

constexpr int64_t kMostRepeats = 100000;

class EbnfParser {
  public:
    EbnfParser(const std::string& text,
               const std::string& pointer,
               Productions& p,
               const Limits& limits)
        : text_(code_points(text)), pointer_(pointer), p_(p), limits_(limits) {}

    ExprId whole() {
        blanks();
        if (at_end()) fail("the grammar is empty");
        while (!at_end()) rule();
        for (const auto& [name, r] : rules_) {
            if (r.defined) continue;
            at_ = r.first_use;
            fail("the rule '" + name + "' is used but not defined");
        }
        const auto root = rules_.find("root");
        if (root == rules_.end()) {
            at_ = 0;
            fail("there is no rule 'root'");
        }
        p_.set_root(root->second.id);
        if (!p_.productive_rules()[static_cast<size_t>(root->second.id)]) {
            refuse(pointer_ + position(root->second.defined_at),
                   "root",
                   "the rule 'root' produces no finite text");
        }
        return p_.ref(root->second.id);
    }

  private:
    struct Known {
        RuleId id = -1;
        bool defined = false;
        size_t defined_at = 0, first_use = 0;
    };

    std::string position(size_t at) const {
        size_t line = 1, column = 1;
        for (size_t i = 0; i < at && i < text_.size(); ++i) {
            ++column;
            if (text_[i] == '\n') {
                ++line;
                column = 1;
            }
        }
        return std::to_string(line) + ":" + std::to_string(column);
    }
    [[noreturn]] void fail(const std::string& why) const {
        refuse(pointer_ + position(at_), "ebnf", why);
    }
    bool at_end() const { return at_ >= text_.size(); }
    uint32_t peek(size_t ahead = 0) const {
        return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0;
    }

    void blanks() {
        while (!at_end()) {
            const uint32_t c = peek();
            if (c == '#') {
                while (!at_end() && peek() != '\n') ++at_;
            } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
                ++at_;
            } else {
                return;
            }
        }
    }
    static bool name_start(uint32_t c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    }
    static bool name_part(uint32_t c) {
        return name_start(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
    }

    std::string name() {
        std::string out;
        while (!at_end() && name_part(peek())) out += static_cast<char>(text_[at_++]);
        return out;
    }
    /// A name with "::=" behind it: the next rule begins here.
    bool rule_begins() {
        if (!name_start(peek())) return false;
        const size_t start = at_;
        name();
        blanks();
        const bool is = peek() == ':' && peek(1) == ':' && peek(2) == '=';
        at_ = start;
        return is;
    }

    void rule() {
        if (!name_start(peek())) fail("expected a rule: name ::= …");
        const size_t start = at_;
        const std::string n = name();
        if (peek() == '[') fail("rule attributes are not supported");
        blanks();
        if (!(peek() == ':' && peek(1) == ':' && peek(2) == '='))
            fail("expected ::= behind the rule name '" + n + "'");
        at_ += 3;
        Known& k = known(n, start);
        if (k.defined) {
            at_ = start;
            fail("the rule '" + n + "' is defined twice");
        }
        k.defined = true;
        k.defined_at = start;
        const RuleId id = k.id;
        blanks();
        const ExprId body = alternatives(1);
        p_.set_body(id, body);
        blanks();
        if (!at_end() && !rule_begins()) fail("unexpected text behind the rule '" + n + "'");
    }

    Known& known(const std::string& n, size_t at) {
        Known& k = rules_[n];
        if (k.id < 0) {
            if (rules_.size() > limits_.rules)
                fail("more than " + std::to_string(limits_.rules) + " rules");
            k.id = p_.add_rule("rule");
            k.first_use = at;
        }
        return k;
    }

    ExprId alternatives(size_t depth) {
        if (depth > limits_.depth)
            fail("groups are nested deeper than " + std::to_string(limits_.depth));
        std::vector<ExprId> ways = {sequence(depth)};
        while (peek() == '|' && !at_end()) {
            ++at_;
            blanks();
            ways.push_back(sequence(depth));
        }
        return p_.choice(std::move(ways));
    }

    ExprId sequence(size_t depth) {
        std::vector<ExprId> parts;
        while (!at_end() && peek() != '|' && peek() != ')' && !rule_begins()) {
            parts.push_back(quantified(element(depth)));
            blanks();
        }
        if (parts.empty()) fail("an alternative is empty (write \"\" for the empty text)");
        return p_.sequence(std::move(parts));
    }

    ExprId quantified(ExprId e) {
        bool repeated = false;
        while (true) {
            const size_t start = at_;
            blanks();
            const uint32_t c = at_end() ? 0 : peek();
            int64_t min = 0, max = kNoMax;
            if (c == '*') {
                ++at_;
            } else if (c == '+') {
                ++at_;
                min = 1;
            } else if (c == '?') {
                ++at_;
                max = 1;
            } else if (c == '{') {
                ++at_;
                min = number();
                max = min;
                if (peek() == ',') {
                    ++at_;
                    blanks();
                    max = peek() == '}' ? kNoMax : number();
                }
                if (peek() != '}') fail("a repetition without }");
                ++at_;
                if (max != kNoMax && max < min)
                    fail("the repetition {" + std::to_string(min) + "," + std::to_string(max) +
                         "} is empty");
            } else {
                at_ = start;
                return e;
            }
            if (repeated) fail("a repetition of a repetition: use a group");
            repeated = true;
            e = p_.repeat(e, static_cast<int>(min), static_cast<int>(max));
        }
    }

    int64_t number() {
        blanks();
        if (peek() < '0' || peek() > '9') fail("a repetition needs a count");
        int64_t v = 0;
        while (peek() >= '0' && peek() <= '9') {
            v = v * 10 + (peek() - '0');
            if (v > kMostRepeats)
                fail("a repetition count is above " + std::to_string(kMostRepeats));
            ++at_;
        }
        blanks();
        return v;
    }

    ExprId element(size_t depth) {
        const uint32_t c = peek();
        if (c == '"' || c == '\'') return p_.literal(quoted(c));
        if (c == '[') return p_.chars(bracket());
        if (c == '.') {
            ++at_;
            return p_.chars(CharSet::universe());
        }
        if (c == '(') {
            ++at_;
            blanks();
            if (peek() == '=') fail("lookahead is not supported");
            const ExprId e = alternatives(depth + 1);
            if (peek() != ')') fail("a group without )");
            ++at_;
            return e;
        }
        if (name_start(c)) {
            const size_t start = at_;
            const std::string n = name();
            if (peek() == '(') fail("macros (" + n + "(…)) are not supported");
            return p_.ref(known(n, start).id);
        }
        fail(std::string("unexpected character ") +
             (c < 0x7F ? "'" + utf8_of(c) + "'" : "U+" + std::to_string(c)));
    }

    uint32_t escape() {
        ++at_;
        const uint32_t c = peek();
        ++at_;
        const auto hex = [this](int digits) {
            uint32_t v = 0;
            for (int i = 0; i < digits; ++i, ++at_) {
                const uint32_t d = peek();
                if (d >= '0' && d <= '9') {
                    v = v * 16 + d - '0';
                } else if ((d | 0x20) >= 'a' && (d | 0x20) <= 'f') {
                    v = v * 16 + (d | 0x20) - 'a' + 10;
                } else {
                    fail("an escape with too few hexadecimal digits");
                }
            }
            if (v > kMaxCodePoint || (v >= 0xD800 && v <= 0xDFFF) || v >= kMarkerBase)
                fail("an escape of no usable character");
            return v;
        };
        switch (c) {
            case 'n':
                return '\n';
            case 't':
                return '\t';
            case 'r':
                return '\r';
            case 'f':
                return '\f';
            case 'v':
                return '\v';
            case 'b':
                return '\b';
            case '0':
                return 0;
            case 'x':
                return hex(2);
            case 'u':
                return hex(4);
            case 'U':
                return hex(8);
            default:
                break;
        }
        const bool punctuation = c > 0x20 && c < 0x7F && !name_part(c);
        if (punctuation || c == '-' || c == '.') return c;
        fail("an unknown escape");
    }

    std::string quoted(uint32_t quote) {
        ++at_;
        std::string out;
        while (true) {
            if (at_end() || peek() == '\n') fail("a text without closing quote");
            if (peek() == quote) break;
            const uint32_t c = peek() == '\\' ? escape() : text_[at_++];
            if (c >= kMarkerBase) fail("a character that stands for no text");
            out += utf8_of(c);
        }
        ++at_;
        return out;
    }

    CharSet bracket() {
        ++at_;
        const bool negated = peek() == '^';
        if (negated) ++at_;
        CharSet set;
        while (peek() != ']' || at_end()) {
            if (at_end() || peek() == '\n') fail("a class without ]");
            if (peek() == '\\' && (peek(1) == 'd' || peek(1) == 'w' || peek(1) == 's' ||
                                   peek(1) == 'D' || peek(1) == 'W' || peek(1) == 'S')) {
                set.add(parse_regex("\\" + std::string(1, static_cast<char>(peek(1))), "", limits_)
                            .set);
                at_ += 2;
                continue;
            }
            const uint32_t lo = peek() == '\\' ? escape() : text_[at_++];
            uint32_t hi = lo;
            if (peek() == '-' && peek(1) != ']' && !at_end()) {
                ++at_;
                if (at_end()) fail("a class without ]");
                hi = peek() == '\\' ? escape() : text_[at_++];
                if (hi < lo) fail("a range out of order");
            }
            set.add(CharSet::of(lo, hi));
        }
        ++at_;
        set = negated ? set.complement() : set.intersect(CharSet::universe());
        return set;
    }

    const std::vector<uint32_t> text_;
    const std::string& pointer_;
    Productions& p_;
    const Limits& limits_;
    size_t at_ = 0;
    std::map<std::string, Known> rules_;
};

}  // namespace

ExprId lower_ebnf(const std::string& text,
                  const std::string& pointer,
                  Productions& p,
                  const Limits& limits) {
    if (text.size() > limits.source_bytes) {
        refuse(pointer,
               "ebnf",
               "the grammar has " + std::to_string(text.size()) + " bytes, at most " +
                   std::to_string(limits.source_bytes) + " are taken");
    }
    return EbnfParser(text, pointer, p, limits).whole();
}

}  // namespace deepinfer::grammar
