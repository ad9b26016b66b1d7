// JSON as prompts need it: key order kept, digits kept, repeated keys seen.
//
// The parser behind it is nlohmann's (SAX); this type exists because a prompt shows a client's JSON
// again (tool schemas, arguments), so 1.0 must stay a float, 12345678901234567890123 must keep its
// digits, and the caller decides what a repeated key means. Strict: no NaN, no comments, valid
// UTF-8, no lone surrogates, no raw control characters in strings, numbers within the range of a
// double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer::recipe {

/// A JSON value. Movable and copyable; nesting is bounded by the parser (JsonLimits::depth).
class Json {
  public:
    enum class Type { kNull, kBool, kInt, kFloat, kString, kArray, kObject, kRaw };
    using Member = std::pair<std::string, Json>;

    Json() = default;
    Json(bool value) : type_(Type::kBool), bool_(value) {}                      // NOLINT
    Json(int value) : Json(static_cast<int64_t>(value)) {}                      // NOLINT
    Json(int64_t value) : type_(Type::kInt), text_(std::to_string(value)) {}    // NOLINT
    Json(uint64_t value) : type_(Type::kInt), text_(std::to_string(value)) {}   // NOLINT
    Json(double value) : type_(Type::kFloat), double_(value) {}                 // NOLINT
    Json(std::string value) : type_(Type::kString), text_(std::move(value)) {}  // NOLINT
    Json(std::string_view value) : Json(std::string(value)) {}                  // NOLINT
    Json(const char* value) : Json(std::string(value)) {}                       // NOLINT

    static Json object() { return of(Type::kObject); }
    static Json object(std::vector<Member> members);
    static Json array() { return of(Type::kArray); }
    static Json array(std::vector<Json> items);
    /// An integer by its digits ("-12", any length).
    static Json integer(std::string digits);
    /// Text that is JSON already; written as it stands.
    static Json raw(std::string text);

    Type type() const { return type_; }
    bool is_null() const { return type_ == Type::kNull; }
    bool is_bool() const { return type_ == Type::kBool; }
    bool is_int() const { return type_ == Type::kInt; }
    bool is_number() const { return type_ == Type::kInt || type_ == Type::kFloat; }
    bool is_string() const { return type_ == Type::kString; }
    bool is_array() const { return type_ == Type::kArray; }
    bool is_object() const { return type_ == Type::kObject; }

    bool as_bool() const { return bool_; }
    double as_double() const;
    /// The value of an integer that fits.
    std::optional<int64_t> as_int64() const;
    std::optional<uint64_t> as_uint64() const;
    const std::string& as_string() const { return text_; }
    const std::vector<Json>& items() const { return items_; }
    std::vector<Json>& items() { return items_; }
    const std::vector<Member>& members() const { return members_; }
    std::vector<Member>& members() { return members_; }

    /// The member's value, or nullptr (also if this is no object).
    const Json* find(std::string_view key) const;
    /// Replaces the member in its place, or appends it.
    void set(std::string_view key, Json value);
    void push_back(Json value) { items_.push_back(std::move(value)); }

    /// Some object in here had a key twice (the last value counts, in the first one's place).
    bool has_duplicate_keys() const { return duplicate_keys_; }
    void mark_duplicate_keys() { duplicate_keys_ = true; }

  private:
    static Json of(Type type) {
        Json value;
        value.type_ = type;
        return value;
    }

    Type type_ = Type::kNull;
    bool bool_ = false;
    bool duplicate_keys_ = false;  // set at the root by the parser
    double double_ = 0;
    std::string text_;  // kString: the string; kInt: digits; kRaw: JSON text
    std::vector<Json> items_;
    std::vector<Member> members_;
};

struct JsonLimits {
    size_t depth = 128;             ///< nesting of arrays and objects
    size_t num_values = 4'000'000;  ///< values and keys of the whole text (memory is bounded by it)
    size_t keys = static_cast<size_t>(-1);  ///< of one object, repeated ones counted each time
    size_t string_bytes = static_cast<size_t>(-1);  ///< of one string or key
};

/// Parses one JSON text, whitespace around it allowed. kInvalidArgument with the place otherwise.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

/// How numbers are written.
enum class JsonNumbers {
    kPython,  ///< json.dumps: digits of integers intact
    kCompat,  ///< deepseek-recipe: integers beyond 64 bits and -0 are floats
};

/// Python's json.dumps(value, ensure_ascii=False): ", " and ": ", key order kept, shortest floats.
std::string dump_python(const Json& value, JsonNumbers numbers = JsonNumbers::kPython);
void dump_python(const Json& value, JsonNumbers numbers, std::string* out);

/// A string as a JSON string, quotes included.
std::string json_quote(std::string_view text);
/// The same without quotes: what stands between them.
void json_escape(std::string_view text, std::string* out);

/// repr() of a finite double: "1.0", "1e-05", "1e+16".
std::string python_float(double value);

}  // namespace deepinfer::recipe
