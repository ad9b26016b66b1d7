#include "grammar/regex.h"

#include <algorithm>
#include <array>

namespace deepinfer::grammar {
namespace {

constexpr int kMostRepeats = 100000;

CharSet digits() {
    return CharSet::of('0', '9');
}

CharSet word_chars() {
    CharSet s = digits();
    s.add('A', 'Z');
    s.add('_', '_');
    s.add('a', 'z');
    return s;
}

CharSet white_space() {  // ECMAScript: WhiteSpace and LineTerminator
    CharSet s = CharSet::of(9, 13);
    for (const uint32_t c : {0x20u, 0xA0u, 0x1680u}) s.add(c, c);
    s.add(0x2000, 0x200A);
    s.add(0x2028, 0x2029);
    for (const uint32_t c : {0x202Fu, 0x205Fu, 0x3000u, 0xFEFFu}) s.add(c, c);
    return s;
}

CharSet dot() {
    CharSet ends = CharSet::one('\n');
    for (const uint32_t c : {0x0Du, 0x2028u, 0x2029u}) ends.add(c, c);
    return ends.complement();
}

class Parser {
  public:
    Parser(const std::string& pattern, const std::string& pointer, const Limits& limits)
        : text_(code_points(pattern)), pointer_(pointer), limits_(limits) {}

    Regex whole() {
        Regex r = alternation();
        if (!at_end()) fail("unmatched ')'");
        return r;
    }

  private:
    bool at_end() const { return pos_ >= text_.size(); }
    uint32_t peek(size_t ahead = 0) const {
        return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : 0;
    }
    bool take(uint32_t c) {
        if (at_end() || text_[pos_] != c) return false;
        ++pos_;
        return true;
    }
    [[noreturn]] void fail(const std::string& why) const {
        refuse(pointer_,
               "pattern",
               "regular expression, character " + std::to_string(pos_ + 1) + ": " + why);
    }

    Regex alternation() {
        if (++depth_ > limits_.depth) {
            fail("groups are nested deeper than " + std::to_string(limits_.depth));
        }
        std::vector<Regex> parts = {sequence()};
        while (take('|')) parts.push_back(sequence());
        --depth_;
        return Regex::alternate(std::move(parts));
    }

    Regex sequence() {
        std::vector<Regex> parts;
        while (!at_end() && peek() != '|' && peek() != ')') {
            Regex a = atom();
            quantify(&a);
            parts.push_back(std::move(a));
        }
        return Regex::concat(std::move(parts));
    }

    void quantify(Regex* a) {
        int min = 0, max = 0;
        const size_t start = pos_;
        if (take('*')) {
            max = kNoMax;
        } else if (take('+')) {
            min = 1;
            max = kNoMax;
        } else if (take('?')) {
            max = 1;
        } else if (peek() != '{' || at_end() || !braces(&min, &max)) {
            pos_ = start;
            return;
        }
        const bool anchor = a->kind == Regex::Kind::kBegin || a->kind == Regex::Kind::kEnd;
        if (anchor) fail("an anchor cannot be repeated");
        if (peek() == '+' && !at_end()) fail("possessive quantifiers are not supported");
        take('?');  // a lazy quantifier matches the same texts
        if (!at_end() && (peek() == '*' || peek() == '+' || peek() == '?'))
            fail("nothing to repeat");
        int dummy_min = 0, dummy_max = 0;
        const size_t here = pos_;
        if (peek() == '{' && !at_end() && braces(&dummy_min, &dummy_max)) {
            pos_ = here;
            fail("nothing to repeat");
        }
        *a = Regex::repeat(std::move(*a), min, max);
    }

    // {m}, {m,}, {m,n}. False: an ordinary brace.
    bool braces(int* min, int* max) {
        ++pos_;
        const auto number = [this](int* out) {
            if (peek() < '0' || peek() > '9') return false;
            int64_t v = 0;
            while (peek() >= '0' && peek() <= '9') {
                v = v * 10 + (peek() - '0');
                if (v > kMostRepeats) {
                    fail("a repetition count is above " + std::to_string(kMostRepeats));
                }
                ++pos_;
            }
            *out = static_cast<int>(v);
            return true;
        };
        if (!number(min)) return false;
        *max = *min;
        if (take(',')) {
            if (!number(max)) *max = kNoMax;
        }
        if (!take('}')) return false;
        if (*max != kNoMax && *max < *min) {
            fail("the repetition {" + std::to_string(*min) + "," + std::to_string(*max) +
                 "} is empty");
        }
        return true;
    }

    Regex atom() {
        const uint32_t c = text_[pos_];
        switch (c) {
            case '(':
                return group();
            case '[':
                return Regex::chars(bracket());
            case '.':
                ++pos_;
                return Regex::chars(dot());
            case '^':
            case '$': {
                ++pos_;
                Regex r;
                r.kind = c == '^' ? Regex::Kind::kBegin : Regex::Kind::kEnd;
                return r;
            }
            case '*':
            case '+':
            case '?':
                fail("nothing to repeat");
            case '\\': {
                ++pos_;
                if (at_end()) fail("a lone \\ at the end");
                if (peek() == 'A' || peek() == 'z' || peek() == 'Z') {
                    Regex r;
                    r.kind = peek() == 'A' ? Regex::Kind::kBegin : Regex::Kind::kEnd;
                    ++pos_;
                    return r;
                }
                if (peek() == 'b' || peek() == 'B')
                    fail("word boundaries (\\b, \\B) are not supported");
                if ((peek() >= '1' && peek() <= '9') || peek() == 'k') {
                    fail("backreferences are not supported");
                }
                return Regex::chars(escape());
            }
            default:
                break;
        }
        if (c == '{') {  // ECMAScript with flag u refuses a lone brace; here it is itself if it can
                         // be no count
            int min = 0, max = 0;
            const size_t start = pos_;
            if (braces(&min, &max)) fail("nothing to repeat");
            pos_ = start;
        }
        ++pos_;
        return Regex::chars(CharSet::one(c).intersect(CharSet::universe()));
    }

    Regex group() {
        ++pos_;
        if (take('?')) {
            if (take(':')) {
            } else if (peek() == '=' || peek() == '!' ||
                       (peek() == '<' && (peek(1) == '=' || peek(1) == '!'))) {
                fail("look-around is not supported");
            } else if (peek() == '<' || (peek() == 'P' && peek(1) == '<')) {
                while (!at_end() && peek() != '>') ++pos_;
                if (!take('>')) fail("a group name without end");
            } else if (peek() == '>') {
                fail("atomic groups are not supported");
            } else if (peek() == 'P' && peek(1) == '=') {
                fail("backreferences are not supported");
            } else {
                fail("inline flags and other (?…) groups are not supported");
            }
        }
        Regex r = alternation();
        if (!take(')')) fail("a group without ')'");
        return r;
    }

    uint32_t hex(size_t least, size_t most) {
        uint32_t v = 0;
        size_t n = 0;
        while (n < most) {
            const uint32_t c = peek();
            uint32_t d = 0;
            if (c >= '0' && c <= '9') {
                d = c - '0';
            } else if (c >= 'a' && c <= 'f') {
                d = c - 'a' + 10;
            } else if (c >= 'A' && c <= 'F') {
                d = c - 'A' + 10;
            } else {
                break;
            }
            v = v * 16 + d;
            ++pos_;
            ++n;
        }
        if (n < least) fail("an escape with too few hexadecimal digits");
        return v;
    }

    /// What stands behind the backslash.
    CharSet escape() {
        const uint32_t c = text_[pos_++];
        switch (c) {
            case 'd':
                return digits();
            case 'D':
                return digits().complement();
            case 'w':
                return word_chars();
            case 'W':
                return word_chars().complement();
            case 's':
                return white_space();
            case 'S':
                return white_space().complement();
            case 'n':
                return CharSet::one('\n');
            case 't':
                return CharSet::one('\t');
            case 'r':
                return CharSet::one('\r');
            case 'f':
                return CharSet::one('\f');
            case 'v':
                return CharSet::one('\v');
            case '0':
                if (peek() >= '0' && peek() <= '9') fail("octal escapes are not supported");
                return CharSet::one(0);
            case 'x':
                return CharSet::one(hex(2, 2));
            case 'c': {
                const uint32_t letter = peek() | 0x20;
                if (letter < 'a' || letter > 'z') fail("\\c needs a letter");
                ++pos_;
                return CharSet::one(letter & 31);
            }
            case 'u':
                return CharSet::one(unicode_escape());
            case 'p':
            case 'P':
                return category(c == 'P');
            default:
                break;
        }
        const bool letter =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (letter) {
            --pos_;
            fail(std::string("unknown escape \\") + static_cast<char>(c));
        }
        return CharSet::one(c);
    }

    uint32_t unicode_escape() {
        uint32_t c = 0;
        if (take('{')) {
            c = hex(1, 6);
            if (!take('}')) fail("\\u{ without }");
        } else {
            c = hex(4, 4);
            if (c >= 0xD800 && c < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
                pos_ += 2;
                const uint32_t low = hex(4, 4);
                if (low < 0xDC00 || low > 0xDFFF) fail("an unpaired surrogate");
                c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            }
        }
        if (c > kMaxCodePoint || (c >= 0xD800 && c <= 0xDFFF))
            fail("a code point that is no character");
        return c;
    }

    CharSet category(bool negated) {
        if (!take('{')) fail("\\p needs {…}");
        std::string name;
        while (!at_end() && peek() != '}' && peek() < 0x80)
            name += static_cast<char>(text_[pos_++]);
        if (!take('}')) fail("\\p{ without }");
        for (const char* prefix : {"General_Category=", "gc="}) {
            if (name.rfind(prefix, 0) == 0) name = name.substr(std::string(prefix).size());
        }
        const CharSet s = unicode_category(name);
        if (s.empty()) fail("\\p{" + name + "}: only general categories are supported");
        return negated ? s.complement() : s;
    }

    CharSet bracket() {
        ++pos_;
        const bool negated = take('^');
        CharSet set;
        while (true) {
            if (at_end()) fail("a class without ']'");
            if (take(']')) break;
            if (peek() == '[' && peek(1) == ':') fail("POSIX classes are not supported");
            bool single = false;
            const CharSet lo = class_atom(&single);
            if (peek() == '-' && !at_end() && peek(1) != ']' && pos_ + 1 < text_.size()) {
                if (!single) fail("a class cannot begin a range");
                ++pos_;
                bool single_hi = false;
                const CharSet hi = class_atom(&single_hi);
                if (!single_hi) fail("a class cannot end a range");
                const uint32_t a = lo.intervals()[0].first, b = hi.intervals()[0].first;
                if (a > b) fail("a range out of order");
                set.add(CharSet::of(a, b));
            } else {
                set.add(lo);
            }
        }
        if (negated) return set.complement();
        return set.intersect(CharSet::universe());
    }

    CharSet class_atom(bool* single) {
        const uint32_t c = text_[pos_];
        *single = true;
        if (c != '\\') {
            ++pos_;
            return CharSet::one(c);
        }
        ++pos_;
        if (at_end()) fail("a lone \\ at the end");
        if (take('b')) return CharSet::one('\b');
        if (take('-')) return CharSet::one('-');
        if (peek() >= '1' && peek() <= '9') fail("octal escapes are not supported");
        const CharSet s = escape();
        *single = s.size() == 1;
        return s;
    }

    const std::vector<uint32_t> text_;
    const std::string& pointer_;
    const Limits& limits_;
    size_t pos_ = 0;
    size_t depth_ = 0;
};

bool ends_ok(const Regex& r, bool first, bool last) {
    switch (r.kind) {
        case Regex::Kind::kBegin:
            return first;
        case Regex::Kind::kEnd:
            return last;
        case Regex::Kind::kAlternate:
            return std::all_of(r.parts.begin(), r.parts.end(), [&](const Regex& p) {
                return ends_ok(p, first, last);
            });
        case Regex::Kind::kConcat: {
            for (size_t i = 0; i < r.parts.size(); ++i) {
                if (!ends_ok(r.parts[i], first && i == 0, last && i + 1 == r.parts.size()))
                    return false;
            }
            return true;
        }
        case Regex::Kind::kRepeat:
            return !r.parts[0].has_anchor();
        default:
            return true;
    }
}

}  // namespace

Regex Regex::chars(CharSet s) {
    Regex r;
    r.kind = Kind::kChars;
    r.set = std::move(s);
    return r;
}

Regex Regex::text(const std::string& utf8) {
    std::vector<Regex> parts;
    for (const uint32_t c : code_points(utf8)) parts.push_back(chars(CharSet::one(c)));
    return concat(std::move(parts));
}

Regex Regex::concat(std::vector<Regex> parts) {
    if (parts.empty()) return empty();
    if (parts.size() == 1) return std::move(parts[0]);
    Regex r;
    r.kind = Kind::kConcat;
    r.parts = std::move(parts);
    return r;
}

Regex Regex::alternate(std::vector<Regex> parts) {
    if (parts.size() == 1) return std::move(parts[0]);
    Regex r;
    r.kind = Kind::kAlternate;
    r.parts = std::move(parts);
    return r;
}

Regex Regex::repeat(Regex part, int min, int max) {
    Regex r;
    r.kind = Kind::kRepeat;
    r.min = min;
    r.max = max;
    r.parts.push_back(std::move(part));
    return r;
}

bool Regex::has_anchor() const {
    return kind == Kind::kBegin || kind == Kind::kEnd ||
           std::any_of(parts.begin(), parts.end(), [](const Regex& p) { return p.has_anchor(); });
}

uint64_t Regex::size() const {
    constexpr uint64_t kMost = uint64_t{1} << 62;
    uint64_t n = 1;
    for (const Regex& p : parts) n = std::min(kMost, n + p.size());
    if (kind == Kind::kRepeat) {
        const auto copies = static_cast<uint64_t>(std::max(1, max == kNoMax ? min + 1 : max));
        n = n > kMost / copies ? kMost : n * copies;
    }
    return n;
}

Regex parse_regex(const std::string& pattern, const std::string& pointer, const Limits& limits) {
    if (pattern.size() > limits.source_bytes) {
        refuse(pointer,
               "pattern",
               "the regular expression has " + std::to_string(pattern.size()) + " bytes, at most " +
                   std::to_string(limits.source_bytes) + " are taken");
    }
    return Parser(pattern, pointer, limits).whole();
}

bool anchors_at_ends(const Regex& r) {
    return ends_ok(r, true, true);
}

Regex without_anchors(Regex r) {
    if (r.kind == Regex::Kind::kBegin || r.kind == Regex::Kind::kEnd) return Regex::empty();
    for (Regex& p : r.parts) p = without_anchors(std::move(p));
    return r;
}

}  // namespace deepinfer::grammar
