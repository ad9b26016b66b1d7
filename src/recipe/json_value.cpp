#include "recipe/json_value.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace deepinfer::recipe {

namespace {

// Members are looked up by a scan while an object is small, by a table from here on: a hostile
// object with very many keys must not cost quadratic time.
constexpr size_t kIndexFrom = 16;

struct Frame {
    Json value;
    std::string key;  // of the member that is being read
    size_t num_keys = 0;
    std::unordered_map<std::string, size_t> index;
};

/// Builds a Json from the parser's events. Never throws by itself; false stops the parser.
class Builder : public nlohmann::json_sax<nlohmann::json> {
  public:
    explicit Builder(const JsonLimits& limits) : limits_(limits) {}

    bool null() override { return add(Json()); }
    bool boolean(bool value) override { return add(Json(value)); }
    bool number_unsigned(number_unsigned_t value) override {
        return add(Json(static_cast<uint64_t>(value)));
    }
    bool number_integer(number_integer_t value) override {
        // The lexer calls this for a leading minus only, so zero was "-0".
        return add(value == 0 ? Json::integer("-0") : Json(static_cast<int64_t>(value)));
    }
    bool number_float(number_float_t value, const string_t& digits) override {
        // Integers that do not fit 64 bits arrive here too.
        const bool integer = digits.find_first_of(".eE") == std::string::npos;
        return add(integer ? Json::integer(digits) : Json(value));
    }
    bool string(string_t& value) override { return fits(value) && add(Json(std::move(value))); }
    bool binary(binary_t& /*value*/) override { return false; }

    bool start_object(std::size_t /*count*/) override { return open(Json::object()); }
    bool start_array(std::size_t /*count*/) override { return open(Json::array()); }
    bool key(string_t& name) override {
        if (!fits(name)) return false;
        Frame& frame = frames_.back();
        if (++frame.num_keys > limits_.keys)
            return fail("an object has more than " + std::to_string(limits_.keys) + " keys");
        frame.key = std::move(name);
        return count();
    }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }

    bool parse_error(std::size_t position,
                     const std::string& /*last_token*/,
                     const nlohmann::detail::exception& error) override {
        // The library's sentence ends after "parse error at line 1, column 5: …".
        std::string what = error.what();
        if (const size_t at = what.find("] "); at != std::string::npos) what.erase(0, at + 2);
        if (what.size() > 240) what.resize(240);
        fail(what + " (byte " + std::to_string(position) + ")");
        return false;
    }

    Json& result() { return result_; }
    bool duplicates() const { return duplicates_; }
    const std::string& error() const { return error_; }

  private:
    bool count() {
        if (++num_values_ > limits_.num_values)
            return fail("JSON has more than " + std::to_string(limits_.num_values) + " values");
        return true;
    }
    bool fits(const std::string& text) {
        if (text.size() > limits_.string_bytes)
            return fail("a string has " + std::to_string(text.size()) +
                        " bytes, expected at most " + std::to_string(limits_.string_bytes));
        return true;
    }
    bool fail(std::string message) {
        if (error_.empty()) error_ = std::move(message);
        return false;
    }
    bool open(Json container) {
        if (frames_.size() >= limits_.depth)
            return fail("JSON is nested deeper than " + std::to_string(limits_.depth));
        frames_.emplace_back();
        frames_.back().value = std::move(container);
        return count();
    }
    bool close() {
        Json value = std::move(frames_.back().value);
        frames_.pop_back();
        place(std::move(value));
        return true;
    }
    bool add(Json value) {
        place(std::move(value));
        return count();
    }
    void place(Json value) {
        if (frames_.empty()) {
            result_ = std::move(value);
            return;
        }
        Frame& frame = frames_.back();
        if (frame.value.is_array()) {
            frame.value.items().push_back(std::move(value));
            return;
        }
        std::vector<Json::Member>& members = frame.value.members();
        size_t at = members.size();
        if (members.size() < kIndexFrom) {
            for (size_t i = 0; i < members.size(); ++i)
                if (members[i].first == frame.key) at = i;
        } else {
            if (frame.index.empty())
                for (size_t i = 0; i < members.size(); ++i)
                    frame.index.emplace(members[i].first, i);
            at = frame.index.emplace(frame.key, members.size()).first->second;
        }
        if (at < members.size()) {
            duplicates_ = true;
            members[at].second = std::move(value);
        } else {
            members.emplace_back(std::move(frame.key), std::move(value));
        }
    }

    const JsonLimits limits_;
    std::vector<Frame> frames_;
    Json result_;
    size_t num_values_ = 0;
    bool duplicates_ = false;
    std::string error_;
};

}  // namespace

Json Json::object(std::vector<Member> members) {
    Json value = object();
    value.members_ = std::move(members);
    return value;
}

Json Json::array(std::vector<Json> items) {
    Json value = array();
    value.items_ = std::move(items);
    return value;
}

Json Json::integer(std::string digits) {
    Json value = of(Type::kInt);
    value.text_ = std::move(digits);
    return value;
}

Json Json::raw(std::string text) {
    Json value = of(Type::kRaw);
    value.text_ = std::move(text);
    return value;
}

double Json::as_double() const {
    if (type_ == Type::kFloat) return double_;
    double value = 0;
    std::from_chars(text_.data(), text_.data() + text_.size(), value);
    return value;
}

std::optional<int64_t> Json::as_int64() const {
    int64_t value = 0;
    const char* end = text_.data() + text_.size();
    if (type_ != Type::kInt) return std::nullopt;
    const auto [ptr, code] = std::from_chars(text_.data(), end, value);
    if (code != std::errc() || ptr != end) return std::nullopt;
    return value;
}

std::optional<uint64_t> Json::as_uint64() const {
    uint64_t value = 0;
    const char* end = text_.data() + text_.size();
    if (type_ != Type::kInt) return std::nullopt;
    const auto [ptr, code] = std::from_chars(text_.data(), end, value);
    if (code != std::errc() || ptr != end) return std::nullopt;
    return value;
}

const Json* Json::find(std::string_view key) const {
    for (const Member& member : members_)
        if (member.first == key) return &member.second;
    return nullptr;
}

void Json::set(std::string_view key, Json value) {
    for (Member& member : members_) {
        if (member.first == key) {
            member.second = std::move(value);
            return;
        }
    }
    members_.emplace_back(std::string(key), std::move(value));
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
    // The library would skip a byte order mark; the JSON standard lets us refuse it.
    if (text.substr(0, 3) == "\xEF\xBB\xBF")
        return Status(StatusCode::kInvalidArgument, "JSON begins with a byte order mark");
    Builder builder(limits);
    bool ok = false;
    try {
        ok = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
    } catch (const std::exception& e) {
        return Status(StatusCode::kInvalidArgument, std::string("JSON: ") + e.what());
    }
    if (!ok) return Status(StatusCode::kInvalidArgument, builder.error());
    if (builder.duplicates()) builder.result().mark_duplicate_keys();
    return std::move(builder.result());
}

void json_escape(std::string_view text, std::string* out) {
    static const char kHex[] = "0123456789abcdef";
    size_t done = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        out->append(text, done, i - done);
        done = i + 1;
        switch (c) {
            case '"':
                out->append("\\\"");
                break;
            case '\\':
                out->append("\\\\");
                break;
            case '\n':
                out->append("\\n");
                break;
            case '\r':
                out->append("\\r");
                break;
            case '\t':
                out->append("\\t");
                break;
            case '\b':
                out->append("\\b");
                break;
            case '\f':
                out->append("\\f");
                break;
            default:
                out->append("\\u00");
                out->push_back(kHex[c >> 4]);
                out->push_back(kHex[c & 15]);
        }
    }
    out->append(text, done, text.size() - done);
}

std::string json_quote(std::string_view text) {
    std::string out = "\"";
    json_escape(text, &out);
    out.push_back('"');
    return out;
}

std::string python_float(double value) {
    if (!std::isfinite(value)) return "null";  // JSON has no other way; the parser lets none in
    char buffer[40];
    const auto result =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
    std::string_view text(buffer, static_cast<size_t>(result.ptr - buffer));  // "-d.ddde±XX"
    std::string out;
    if (text.front() == '-') {
        out.push_back('-');
        text.remove_prefix(1);
    }
    const size_t e = text.find('e');
    std::string digits(text.substr(0, 1));
    if (e > 2) digits.append(text.substr(2, e - 2));
    int exponent = 0;
    std::string_view power = text.substr(e + 1);
    if (power.front() == '+') power.remove_prefix(1);
    std::from_chars(power.data(), power.data() + power.size(), exponent);
    const int num_digits = static_cast<int>(digits.size());
    if (exponent < -4 || exponent >= 16) {
        out.append(digits, 0, 1);
        if (num_digits > 1) out.append(".").append(digits, 1);
        out.push_back('e');
        out.push_back(exponent < 0 ? '-' : '+');
        const int magnitude = std::abs(exponent);
        if (magnitude < 10) out.push_back('0');
        out.append(std::to_string(magnitude));
    } else if (exponent < 0) {
        out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
    } else if (num_digits <= exponent + 1) {
        out.append(digits).append(static_cast<size_t>(exponent + 1 - num_digits), '0').append(".0");
    } else {
        out.append(digits, 0, static_cast<size_t>(exponent + 1)).append(".");
        out.append(digits, static_cast<size_t>(exponent + 1));
    }
    return out;
}

namespace {

void dump_integer(const Json& value, JsonNumbers numbers, std::string* out) {
    const std::string& digits = value.as_string();
    if (numbers == JsonNumbers::kPython) {
        out->append(digits == "-0" ? "0" : digits);
    } else if (digits == "-0" || (!value.as_int64() && !value.as_uint64())) {
        out->append(digits == "-0" ? "-0.0" : python_float(value.as_double()));
    } else {
        out->append(digits);
    }
}

}  // namespace

void dump_python(const Json& value, JsonNumbers numbers, std::string* out) {
    switch (value.type()) {
        case Json::Type::kNull:
            out->append("null");
            break;
        case Json::Type::kBool:
            out->append(value.as_bool() ? "true" : "false");
            break;
        case Json::Type::kInt:
            dump_integer(value, numbers, out);
            break;
        case Json::Type::kFloat:
            out->append(python_float(value.as_double()));
            break;
        case Json::Type::kRaw:
            out->append(value.as_string());
            break;
        case Json::Type::kString:
            out->push_back('"');
            json_escape(value.as_string(), out);
            out->push_back('"');
            break;
        case Json::Type::kArray: {
            out->push_back('[');
            bool first = true;
            for (const Json& item : value.items()) {
                if (!first) out->append(", ");
                first = false;
                dump_python(item, numbers, out);
            }
            out->push_back(']');
            break;
        }
        case Json::Type::kObject: {
            out->push_back('{');
            bool first = true;
            for (const Json::Member& member : value.members()) {
                if (!first) out->append(", ");
                first = false;
                out->push_back('"');
                json_escape(member.first, out);
                out->append("\": ");
                dump_python(member.second, numbers, out);
            }
            out->push_back('}');
            break;
        }
    }
}

std::string dump_python(const Json& value, JsonNumbers numbers) {
    std::string out;
    dump_python(value, numbers, &out);
    return out;
}

}  // namespace deepinfer::recipe
