#include "engine/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace deepinfer {
namespace {

/// Length of the well-formed UTF-8 character at text[i], 0 if there is none.
size_t utf8_length(std::string_view text, size_t i) {
    const auto at = [&](size_t k) -> unsigned {
        return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U;
    };
    const unsigned a = at(i);
    const auto tail = [&](size_t k) { return (at(k) & 0xC0U) == 0x80U; };
    if (a < 0x80) return 1;
    if (a >= 0xC2 && a <= 0xDF) return tail(i + 1) ? 2 : 0;
    if (a >= 0xE0 && a <= 0xEF) {
        const unsigned b = at(i + 1);
        const bool fits = (a != 0xE0 || b >= 0xA0) && (a != 0xED || b <= 0x9F);
        return fits && tail(i + 1) && tail(i + 2) ? 3 : 0;
    }
    if (a >= 0xF0 && a <= 0xF4) {
        const unsigned b = at(i + 1);
        const bool fits = (a != 0xF0 || b >= 0x90) && (a != 0xF4 || b <= 0x8F);
        return fits && tail(i + 1) && tail(i + 2) && tail(i + 3) ? 4 : 0;
    }
    return 0;
}

}  // namespace

std::string json_string(std::string_view text) {
    std::string out = "\"";
    out.reserve(text.size() + 2);
    for (size_t i = 0; i < text.size();) {
        const unsigned char c = static_cast<unsigned char>(text[i]);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += text[i++];
        } else if (c == '\n') {
            out += "\\n";
            ++i;
        } else if (c == '\t') {
            out += "\\t";
            ++i;
        } else if (c < 0x20 || c == 0x7F) {
            char buf[8];
            std::snprintf(buf, sizeof buf, "\\u%04x", c);
            out += buf;
            ++i;
        } else {
            const size_t n = utf8_length(text, i);
            if (n == 0) {
                out += "\xEF\xBF\xBD";
                ++i;
            } else {
                out.append(text, i, n);
                i += n;
            }
        }
    }
    out += '"';
    return out;
}

std::string json_number(double value) {
    if (!std::isfinite(value)) return "null";
    char buf[40];
    const std::to_chars_result r = std::to_chars(buf, buf + sizeof buf, value);
    return std::string(buf, r.ptr);
}

std::string hex_float(double value) {
    char buf[48];
    std::snprintf(buf, sizeof buf, "%a", value);
    return buf;
}

std::string json_ids(const std::vector<int32_t>& ids) {
    std::string out = "[";
    for (size_t i = 0; i < ids.size(); ++i) {
        if (i != 0) out += ',';
        out += std::to_string(ids[i]);
    }
    return out + "]";
}

JsonLine& JsonLine::raw(std::string_view name, std::string_view json) {
    if (body_.size() > 1) body_ += ',';
    body_ += json_string(name);
    body_ += ':';
    body_ += json;
    return *this;
}

JsonLine& JsonLine::text(std::string_view name, std::string_view value) {
    return raw(name, json_string(value));
}

JsonLine& JsonLine::integer(std::string_view name, int64_t value) {
    return raw(name, std::to_string(value));
}

JsonLine& JsonLine::number(std::string_view name, double value) {
    return raw(name, json_number(value));
}

JsonLine& JsonLine::boolean(std::string_view name, bool value) {
    return raw(name, value ? "true" : "false");
}

}  // namespace deepinfer
