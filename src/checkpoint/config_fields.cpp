#include "checkpoint/config_fields.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "checkpoint/strict_json.h"

namespace deepinfer {
namespace {

using nlohmann::json;

/// An exact JSON integer; floats such as 3.0 do not count, nor do values beyond int64.
std::optional<int64_t> as_integer(const json& v) {
    if (v.is_number_unsigned()) {
        const uint64_t u = v.get<uint64_t>();
        if (u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
        return static_cast<int64_t>(u);
    }
    if (v.is_number_integer()) return v.get<int64_t>();
    return std::nullopt;
}

std::string range_text(int64_t low, int64_t high) {
    if (low == high) return std::to_string(low);
    return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

std::string number_text(double v) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%g", v);
    return buffer;
}

}  // namespace

std::string FieldReader::path(FieldName name) const {
    // Messages use the spelling that the file has.
    const bool flat =
        name.flat[0] != '\0' && !object_.contains(name.hf) && object_.contains(name.flat);
    return path_ + (flat ? name.flat : name.hf);
}

bool FieldReader::has(FieldName name) const {
    for (const char* key : {name.hf, name.flat}) {
        const auto it = key[0] != '\0' ? object_.find(key) : object_.end();
        if (it != object_.end() && !it->is_null()) return true;
    }
    return false;
}

const json* FieldReader::get(FieldName name, bool required) {
    known_.insert(name.hf);
    auto it = object_.find(name.hf);
    if (name.flat[0] != '\0' && std::string_view(name.flat) != name.hf) {
        known_.insert(name.flat);
        const auto other = object_.find(name.flat);
        if (it == object_.end()) {
            it = other;
        } else if (other != object_.end() && *other != *it) {
            complain(path_ + name.hf + " is " + show_json(*it) + " but " + path_ + name.flat +
                     ", another spelling of it, is " + show_json(*other));
        }
    }
    if (it != object_.end() && !it->is_null()) return &*it;
    if (required) {
        complain(path(name) + (it == object_.end() ? " is missing" : " is null") +
                 ", but this field is needed");
    }
    return nullptr;
}

void FieldReader::wrong(FieldName name, const json& found, const std::string& expected) {
    complain(path(name) + " is " + show_json(found) + ", expected " + expected);
}

int64_t FieldReader::integer(FieldName name,
                             int64_t low,
                             int64_t high,
                             std::optional<int64_t> fallback) {
    const json* v = get(name, !fallback.has_value());
    if (v == nullptr) return fallback.value_or(low);
    const std::optional<int64_t> n = as_integer(*v);
    if (n.has_value() && *n >= low && *n <= high) return *n;
    wrong(name, *v, range_text(low, high));
    return low;
}

double FieldReader::number(FieldName name,
                           double low,
                           double high,
                           std::optional<double> fallback) {
    const json* v = get(name, !fallback.has_value());
    if (v == nullptr) return fallback.value_or(low);
    if (v->is_number()) {
        const double d = v->get<double>();
        if (std::isfinite(d) && d >= low && d <= high) return d;
    }
    wrong(name, *v, "a number from " + number_text(low) + " to " + number_text(high));
    return low;
}

bool FieldReader::boolean(FieldName name, std::optional<bool> fallback) {
    const json* v = get(name, !fallback.has_value());
    if (v == nullptr) return fallback.value_or(false);
    if (v->is_boolean()) return v->get<bool>();
    wrong(name, *v, "true or false");
    return false;
}

std::vector<int64_t> FieldReader::integers(FieldName name,
                                           size_t max_count,
                                           int64_t low,
                                           int64_t high,
                                           std::optional<std::vector<int64_t>> fallback) {
    const json* v = get(name, !fallback.has_value());
    if (v == nullptr) return fallback.value_or(std::vector<int64_t>{});
    const std::string expected = "an array of at most " + std::to_string(max_count) +
                                 " integers, each from " + std::to_string(low) + " to " +
                                 std::to_string(high);
    if (!v->is_array() || v->size() > max_count) {
        wrong(name, *v, expected);
        return {};
    }
    std::vector<int64_t> out;
    for (const json& item : *v) {
        const std::optional<int64_t> n = as_integer(item);
        if (!n.has_value() || *n < low || *n > high) {
            wrong(name, *v, expected);
            return {};
        }
        out.push_back(*n);
    }
    return out;
}

std::string FieldReader::choice(FieldName name,
                                const std::vector<std::string>& allowed,
                                std::optional<std::string> fallback) {
    const json* v = get(name, !fallback.has_value());
    if (v == nullptr) return fallback.value_or(allowed.front());
    std::string expected;
    for (const std::string& a : allowed) {
        if (v->is_string() && v->get_ref<const std::string&>() == a) return a;
        expected += (expected.empty() ? "\"" : "\" or \"") + a;
    }
    wrong(name, *v, expected + "\"");
    return allowed.front();
}

void FieldReader::must_be(FieldName name, const json& expected, bool required) {
    const json* v = get(name, required);
    if (v != nullptr && (v->type_name() != expected.type_name() || *v != expected)) {
        wrong(name, *v, show_json(expected));
    }
}

const json* FieldReader::object(FieldName name, bool required) {
    const json* v = get(name, required);
    if (v == nullptr) return nullptr;
    if (v->is_object()) return v;
    wrong(name, *v, "an object");
    return nullptr;
}

void FieldReader::ignore(const std::vector<const char*>& names) {
    for (const char* name : names) known_.insert(name);
}

void FieldReader::refuse_unknown() {
    for (const auto& item : object_.items()) {
        if (known_.count(item.key()) != 0) continue;
        complain("unknown field " + path_ + item.key().substr(0, 160) + " (" +
                 show_json(item.value()) +
                 "): it might change the computation, expected only fields of deepseek_v41");
    }
}

}  // namespace deepinfer
