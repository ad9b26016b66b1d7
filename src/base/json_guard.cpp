#include "deepinfer/json_guard.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace deepinfer {
namespace {

void append_utf8(uint32_t c, std::string* out) {
    const auto add = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
    if (c < 0x80) {
        add(c);
    } else if (c < 0x800) {
        add(0xC0 | (c >> 6)), add(0x80 | (c & 63));
    } else if (c < 0x10000) {
        add(0xE0 | (c >> 12)), add(0x80 | ((c >> 6) & 63)), add(0x80 | (c & 63));
    } else {
        add(0xF0 | (c >> 18)), add(0x80 | ((c >> 12) & 63));
        add(0x80 | ((c >> 6) & 63)), add(0x80 | (c & 63));
    }
}

/// Four hexadecimal digits at `at`, or −1.
int32_t hex4(std::string_view text, size_t at) {
    if (at + 4 > text.size()) return -1;
    int32_t value = 0;
    for (size_t i = at; i < at + 4; ++i) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/// The string that begins behind its opening quote at `*at`, which moves behind the closing one.
std::string read_string(std::string_view text, size_t* at) {
    std::string out;
    size_t i = *at;
    while (i < text.size() && text[i] != '"') {
        if (text[i] != '\\' || i + 1 >= text.size()) {
            out.push_back(text[i++]);
            continue;
        }
        const char e = text[i + 1];
        i += 2;
        if (e != 'u') {
            const char* const kFrom = "bfnrt";
            const char* const kTo = "\b\f\n\r\t";
            const size_t k = std::string_view(kFrom).find(e);
            out.push_back(k == std::string_view::npos ? e : kTo[k]);
            continue;
        }
        int32_t c = hex4(text, i);
        if (c < 0) continue;
        i += 4;
        const bool high = c >= 0xD800 && c < 0xDC00 && text.substr(i, 2) == "\\u";
        const int32_t low = high ? hex4(text, i + 2) : -1;
        if (low >= 0xDC00 && low < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            i += 6;
        }
        append_utf8(static_cast<uint32_t>(c), &out);
    }
    *at = i + 1;
    return out;
}

}  // namespace

std::optional<std::string> repeated_json_key(std::string_view text) {
    struct Level {
        bool object = false, at_key = false;
        std::set<std::string> keys;
    };
    std::vector<Level> levels;
    for (size_t i = 0; i < text.size();) {
        const char c = text[i++];
        Level* level = levels.empty() ? nullptr : &levels.back();
        if (c == '"') {
            std::string s = read_string(text, &i);
            if (level != nullptr && level->at_key) {
                level->at_key = false;
                if (!level->keys.insert(s).second) return s;
            }
        } else if (c == '{' || c == '[') {
            levels.push_back({c == '{', c == '{', {}});
        } else if (c == '}' || c == ']') {
            if (level != nullptr) levels.pop_back();
        } else if (c == ',' && level != nullptr) {
            level->at_key = level->object;
        }
    }
    return std::nullopt;
}

bool json_nests_deeper(std::string_view text, int limit) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                ++i;  // whatever follows is no closing quote
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > limit) return true;
        } else if (c == ']' || c == '}') {
            --depth;
        }
    }
    return false;
}

}  // namespace deepinfer
