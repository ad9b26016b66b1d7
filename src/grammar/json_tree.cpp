#include "grammar/json_tree.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "grammar/char_set.h"

namespace deepinfer::grammar {
namespace {

constexpr int kMostDigits = 1000;

class Parser {
  public:
    Parser(JsonTree& tree, std::string_view text, const Limits& limits)
        : tree_(tree), text_(text), limits_(limits) {}

    const JsonNode* document() {
        const JsonNode* root = value("", 1, nullptr);
        blanks();
        if (pos_ < text_.size()) fail("text behind the end of the document");
        return root;
    }

  private:
    [[noreturn]] void fail(const std::string& why) const {
        refuse("", "", "not valid JSON at byte " + std::to_string(pos_) + ": " + why);
    }
    void blanks() {
        while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\t' ||
                                       text_[pos_] == '\n' || text_[pos_] == '\r'))
            ++pos_;
    }
    char peek() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }
    void want(char c) {
        blanks();
        if (peek() != c) fail(std::string("expected '") + c + "'");
        ++pos_;
    }
    void word(const char* w) {
        const std::string_view v(w);
        if (text_.substr(pos_, v.size()) != v) fail("unknown word");
        pos_ += v.size();
    }

    const JsonNode* value(const std::string& pointer, size_t depth, const JsonNode* parent) {
        if (depth > limits_.depth) {
            refuse(
                pointer,
                "",
                "the document is nested deeper than " + std::to_string(limits_.depth) + " levels");
        }
        blanks();
        JsonNode* n = tree_.make(JsonNode::Type::kNull, pointer);
        n->parent = parent;
        switch (peek()) {
            case '{':
                object(n, depth);
                break;
            case '[':
                array(n, depth);
                break;
            case '"':
                n->type = JsonNode::Type::kString;
                n->text = string();
                break;
            case 't':
                word("true");
                n->type = JsonNode::Type::kBool;
                n->boolean = true;
                break;
            case 'f':
                word("false");
                n->type = JsonNode::Type::kBool;
                break;
            case 'n':
                word("null");
                break;
            default:
                number(n);
        }
        return n;
    }

    void object(JsonNode* n, size_t depth) {
        n->type = JsonNode::Type::kObject;
        ++pos_;
        std::set<std::string> seen;
        blanks();
        if (peek() == '}') {
            ++pos_;
            return;
        }
        while (true) {
            blanks();
            if (peek() != '"') fail("expected a key");
            std::string key = string();
            if (!seen.insert(key).second) {
                refuse(
                    n->pointer, key, "the key " + quote_json(key) + " stands twice in one object");
            }
            want(':');
            std::string path = n->pointer + "/";
            for (const char c : key) {
                if (c == '~') {
                    path += "~0";
                } else if (c == '/') {
                    path += "~1";
                } else {
                    path += c;
                }
            }
            const JsonNode* v = value(path, depth + 1, n);
            n->members.emplace_back(std::move(key), v);
            blanks();
            if (peek() == '}') break;
            want(',');
        }
        ++pos_;
    }

    void array(JsonNode* n, size_t depth) {
        n->type = JsonNode::Type::kArray;
        ++pos_;
        blanks();
        if (peek() == ']') {
            ++pos_;
            return;
        }
        while (true) {
            n->items.push_back(
                value(n->pointer + "/" + std::to_string(n->items.size()), depth + 1, n));
            blanks();
            if (peek() == ']') break;
            want(',');
        }
        ++pos_;
    }

    uint32_t hex4() {
        uint32_t v = 0;
        for (int i = 0; i < 4; ++i, ++pos_) {
            const char c = peek();
            const int d = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
            if (d < 0) fail("\\u needs four hexadecimal digits");
            v = v * 16 + static_cast<uint32_t>(d);
        }
        return v;
    }

    std::string string() {
        ++pos_;
        std::string out;
        const size_t begin = pos_;
        while (true) {
            if (pos_ >= text_.size()) fail("a string without end");
            const char c = text_[pos_];
            if (c == '"') break;
            if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
            if (c != '\\') {
                out += c;
                ++pos_;
                continue;
            }
            ++pos_;
            const char e = peek();
            ++pos_;
            switch (e) {
                case '"':
                case '\\':
                case '/':
                    out += e;
                    break;
                case 'b':
                    out += '\b';
                    break;
                case 'f':
                    out += '\f';
                    break;
                case 'n':
                    out += '\n';
                    break;
                case 'r':
                    out += '\r';
                    break;
                case 't':
                    out += '\t';
                    break;
                case 'u': {
                    uint32_t u = hex4();
                    if (u >= 0xD800 && u < 0xDC00 && text_.substr(pos_, 2) == "\\u") {
                        pos_ += 2;
                        const uint32_t low = hex4();
                        if (low < 0xDC00 || low > 0xDFFF) fail("an unpaired surrogate");
                        u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
                    } else if (u >= 0xD800 && u <= 0xDFFF) {
                        fail("an unpaired surrogate");
                    }
                    out += utf8_of(u);
                    break;
                }
                default:
                    fail("an unknown escape");
            }
        }
        // Ill-formed bytes would come back as U+FFFD.
        std::string clean;
        for (const uint32_t u : code_points(out)) clean += utf8_of(u);
        if (clean != out) {
            pos_ = begin;
            fail("a string that is not UTF-8");
        }
        ++pos_;
        return out;
    }

    void number(JsonNode* n) {
        const size_t begin = pos_;
        const auto digits = [this] {
            size_t k = 0;
            while (peek() >= '0' && peek() <= '9') {
                ++pos_;
                ++k;
            }
            return k;
        };
        if (peek() == '-') ++pos_;
        const bool zero = peek() == '0';
        const size_t whole = digits();
        if (whole == 0 || (zero && whole > 1)) fail("not a value");
        if (peek() == '.') {
            ++pos_;
            if (digits() == 0) fail("a number without digits behind the point");
        }
        if (peek() == 'e' || peek() == 'E') {
            ++pos_;
            if (peek() == '+' || peek() == '-') ++pos_;
            if (digits() == 0) fail("a number without exponent digits");
        }
        n->type = JsonNode::Type::kNumber;
        n->text = std::string(text_.substr(begin, pos_ - begin));
        if (!Decimal::parse(n->text, &n->number)) {
            refuse(n->pointer,
                   "",
                   "the number has more than " + std::to_string(kMostDigits) + " digits");
        }
    }

    JsonTree& tree_;
    std::string_view text_;
    const Limits& limits_;
    size_t pos_ = 0;
};

}  // namespace

bool Decimal::parse(std::string_view text, Decimal* out) {
    *out = Decimal();
    std::string digits;
    int64_t exponent = 0;
    size_t i = 0;
    const bool negative = !text.empty() && text[0] == '-';
    if (negative) ++i;
    bool behind = false;
    for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
        if (text[i] == '.') {
            behind = true;
            continue;
        }
        digits += text[i];
        if (behind) --exponent;
    }
    if (i < text.size()) {
        ++i;
        const bool minus = text[i] == '-';
        if (text[i] == '-' || text[i] == '+') ++i;
        int64_t e = 0;
        for (; i < text.size(); ++i) e = std::min<int64_t>(100000, e * 10 + (text[i] - '0'));
        exponent += minus ? -e : e;
    }
    const size_t first = digits.find_first_not_of('0');
    if (first == std::string::npos) return true;
    digits = digits.substr(first);
    const size_t last = digits.find_last_not_of('0');
    exponent += static_cast<int64_t>(digits.size() - 1 - last);
    digits.resize(last + 1);
    const int64_t length =
        std::max<int64_t>(static_cast<int64_t>(digits.size()),
                          std::max(exponent + static_cast<int64_t>(digits.size()), -exponent));
    if (length > kMostDigits) return false;
    out->negative = negative;
    out->digits = std::move(digits);
    out->exponent = static_cast<int>(exponent);
    return true;
}

Decimal Decimal::of(int64_t value) {
    Decimal d;
    parse(std::to_string(value), &d);
    return d;
}

std::string Decimal::whole() const {
    if (zero()) return "0";
    if (exponent >= 0) return digits + std::string(static_cast<size_t>(exponent), '0');
    const int n = static_cast<int>(digits.size()) + exponent;
    return n <= 0 ? "0" : digits.substr(0, static_cast<size_t>(n));
}

std::string Decimal::fraction() const {
    if (exponent >= 0) return "";
    const int n = static_cast<int>(digits.size()) + exponent;
    if (n <= 0) return std::string(static_cast<size_t>(-n), '0') + digits;
    return digits.substr(static_cast<size_t>(n));
}

std::string Decimal::text() const {
    std::string out = negative ? "-" : "";
    out += whole();
    const std::string f = fraction();
    return f.empty() ? out : out + "." + f;
}

int compare(const Decimal& a, const Decimal& b) {
    if (a.negative != b.negative) return a.negative ? -1 : 1;
    const int sign = a.negative ? -1 : 1;
    const std::string wa = a.whole(), wb = b.whole();
    if (wa.size() != wb.size()) return wa.size() < wb.size() ? -sign : sign;
    if (const int c = wa.compare(wb); c != 0) return c < 0 ? -sign : sign;
    const int c = a.fraction().compare(b.fraction());
    return c == 0 ? 0 : c < 0 ? -sign : sign;
}

const JsonNode* JsonNode::find(std::string_view key) const {
    for (const auto& [name, value] : members) {
        if (name == key) return value;
    }
    return nullptr;
}

const char* type_name(JsonNode::Type type) {
    static constexpr const char* kNames[] = {
        "null", "boolean", "number", "string", "array", "object"};
    return kNames[static_cast<int>(type)];
}

bool same_value(const JsonNode& a, const JsonNode& b) {
    if (a.type != b.type) return false;
    switch (a.type) {
        case JsonNode::Type::kNull:
            return true;
        case JsonNode::Type::kBool:
            return a.boolean == b.boolean;
        case JsonNode::Type::kNumber:
            return a.number == b.number;
        case JsonNode::Type::kString:
            return a.text == b.text;
        case JsonNode::Type::kArray:
            if (a.items.size() != b.items.size()) return false;
            for (size_t i = 0; i < a.items.size(); ++i) {
                if (!same_value(*a.items[i], *b.items[i])) return false;
            }
            return true;
        case JsonNode::Type::kObject:
            if (a.members.size() != b.members.size()) return false;
            for (const auto& [key, value] : a.members) {
                const JsonNode* other = b.find(key);
                if (other == nullptr || !same_value(*value, *other)) return false;
            }
            return true;
    }
    return false;
}

std::string quote_json(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        switch (c) {
            case '"':
                out += "\\\"";
                break;
            case '\\':
                out += "\\\\";
                break;
            case '\b':
                out += "\\b";
                break;
            case '\f':
                out += "\\f";
                break;
            case '\n':
                out += "\\n";
                break;
            case '\r':
                out += "\\r";
                break;
            case '\t':
                out += "\\t";
                break;
            default:
                if (static_cast<unsigned char>(c) < 0x20) {
                    char buffer[8];
                    std::snprintf(buffer, sizeof buffer, "\\u%04x", c);
                    out += buffer;
                } else {
                    out += c;
                }
        }
    }
    return out + "\"";
}

std::string compact_json(const JsonNode& n) {
    std::string out;
    switch (n.type) {
        case JsonNode::Type::kNull:
            return "null";
        case JsonNode::Type::kBool:
            return n.boolean ? "true" : "false";
        case JsonNode::Type::kNumber:
            return n.text;
        case JsonNode::Type::kString:
            return quote_json(n.text);
        case JsonNode::Type::kArray:
            for (const JsonNode* i : n.items) out += (out.empty() ? "" : ",") + compact_json(*i);
            return "[" + out + "]";
        case JsonNode::Type::kObject:
            for (const auto& [key, value] : n.members) {
                out += (out.empty() ? "" : ",") + quote_json(key) + ":" + compact_json(*value);
            }
            return "{" + out + "}";
    }
    return out;
}

const JsonNode* JsonTree::parse(std::string_view text, const Limits& limits) {
    if (text.size() > limits.source_bytes) {
        refuse("",
               "",
               "the text has " + std::to_string(text.size()) + " bytes, at most " +
                   std::to_string(limits.source_bytes) + " are taken");
    }
    return Parser(*this, text, limits).document();
}

JsonNode* JsonTree::make(JsonNode::Type type, std::string pointer) {
    nodes_.emplace_back();
    nodes_.back().type = type;
    nodes_.back().pointer = std::move(pointer);
    nodes_.back().id = static_cast<int>(nodes_.size());
    return &nodes_.back();
}

}  // namespace deepinfer::grammar
