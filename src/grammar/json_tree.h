// A JSON document as the gate needs it: numbers keep their digits, members keep their order.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/refusal.h"

namespace deepinfer::grammar {

/// A number as digits × 10^exponent, exact. Zero has no digits and is not negative.
struct Decimal {
    bool negative = false;
    std::string digits;  ///< no leading and no trailing zeros
    int exponent = 0;

    /// From a JSON number. False when it has more than 1,000 digits written out.
    static bool parse(std::string_view text, Decimal* out);
    static Decimal of(int64_t value);
    bool zero() const { return digits.empty(); }
    bool integer() const { return exponent >= 0; }
    /// Digits before the point ("0" if none) and behind it (may be empty), without sign.
    std::string whole() const;
    std::string fraction() const;
    /// Plain decimal text: "-12.5".
    std::string text() const;
    bool operator==(const Decimal&) const = default;
};

/// −1, 0, 1.
int compare(const Decimal& a, const Decimal& b);

struct JsonNode {
    enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };
    Type type = Type::kNull;
    bool boolean = false;
    std::string text;  ///< string value, or a number as written
    Decimal number;
    std::vector<const JsonNode*> items;
    std::vector<std::pair<std::string, const JsonNode*>> members;
    std::string pointer;  ///< where it stands
    const JsonNode* parent = nullptr;
    int id = 0;  ///< order of creation

    bool is(Type t) const { return type == t; }
    const JsonNode* find(std::string_view key) const;
};

/// "null", "boolean", "number", "string", "array", "object".
const char* type_name(JsonNode::Type type);
/// Equal as JSON values (numbers by value, objects without order).
bool same_value(const JsonNode& a, const JsonNode& b);
/// Compact JSON text.
std::string compact_json(const JsonNode& node);
/// A string as JSON, with quotes.
std::string quote_json(const std::string& text);

/// Owns the nodes of one document and of what is derived from it.
class JsonTree {
  public:
    /// Parses one document. Throws Refusal (pointer empty, position in the reason): syntax, a key
    /// twice, bad UTF-8, unpaired surrogates, deeper than limits.depth, larger than
    /// limits.source_bytes.
    const JsonNode* parse(std::string_view text, const Limits& limits);
    /// A node made by the caller.
    JsonNode* make(JsonNode::Type type, std::string pointer);

  private:
    std::deque<JsonNode> nodes_;
};

}  // namespace deepinfer::grammar
