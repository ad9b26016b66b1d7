#include "tokenizer/engram_token_map.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "base/check.h"
#include "tokenizer/unicode_classes.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

std::string mapped(std::string_view text, int options) {
    utf8proc_uint8_t* out = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(text.size()),
                     &out,
                     static_cast<utf8proc_option_t>(options));
    DI_CHECK_MSG(size >= 0,
                 utf8proc_errmsg(size));  // the text is well-formed, so only memory is left
    std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(size));
    std::free(out);  // utf8proc allocates with malloc
    return result;
}

bool is_mark(char32_t c) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
           category == UTF8PROC_CATEGORY_ME;
}

bool is_folded_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

std::string without_marks_lower(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
        size_t size = 0;
        const char32_t c = decode_valid_utf8(text.data() + i, size);
        if (!is_mark(c)) {
            append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
                        out);
        }
        i += size;
    }
    return out;
}

std::string with_folded_spaces(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (!is_folded_space(text[i])) {
            out += text[i];
        } else if (i == 0 || !is_folded_space(text[i - 1])) {
            out += ' ';
        }
    }
    return out;
}

std::string stripped(std::string_view text) {
    const CharClass* class_of = unicode_class_table();
    size_t begin = text.size();
    size_t end = 0;
    for (size_t i = 0; i < text.size();) {
        size_t size = 0;
        const char32_t c = decode_valid_utf8(text.data() + i, size);
        if (class_of[c] != CharClass::kSpace) {
            begin = std::min(begin, i);
            end = i + size;
        }
        i += size;
    }
    return begin < end ? std::string(text.substr(begin, end - begin)) : std::string();
}

}  // namespace

std::string engram_normalize(std::string_view text) {
    std::string n;
    const bool ascii = std::all_of(
        text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
    if (ascii) {  // both normal forms leave it alone, and it has no marks
        for (const char c : text) n += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    } else {
        n = mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
        n = without_marks_lower(mapped(n, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE));
    }
    n = with_folded_spaces(n);
    return n == " " ? n : stripped(n);
}

EngramTokenMap engram_token_map(const Tokenizer& tokenizer) {
    EngramTokenMap out;
    const int32_t vocab_size = tokenizer.vocab_size();
    out.map.reserve(static_cast<size_t>(vocab_size));
    std::unordered_map<std::string, int32_t> ids;
    ids.reserve(static_cast<size_t>(vocab_size));
    for (int32_t id = 0; id < vocab_size; ++id) {
        const std::string_view bytes = tokenizer.token_bytes(id);
        std::string key;
        if (!is_valid_utf8(bytes) || bytes.find(kReplacementCharacter) != std::string_view::npos) {
            key = tokenizer.token_text(id);
        } else {
            key = engram_normalize(bytes);
            if (key.empty()) key = bytes;
        }
        const auto inserted = ids.emplace(std::move(key), out.count);
        if (inserted.second) ++out.count;
        out.map.push_back(inserted.first->second);
    }
    return out;
}

}  // namespace deepinfer
