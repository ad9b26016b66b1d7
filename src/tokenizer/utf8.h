// UTF-8 as the tokenizer reads and writes it: decoding of text known to be well-formed, repair of
// text that is not, and the same repair over a stream.
//
// Repair is that of WHATWG decoders: U+FFFD for each maximal ill-formed part, that is for the
// longest prefix of a well-formed character that is there, or for one byte where not even that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

/// "\xEF\xBF\xBD", U+FFFD.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// What stands at the beginning of `bytes` (not empty).
struct Utf8Part {
    size_t size = 0;          ///< bytes of the character, or of the maximal ill-formed part
    bool valid = false;       ///< a whole well-formed character
    bool unfinished = false;  ///< the bytes end inside a character that more bytes could complete
};
Utf8Part utf8_first_part(std::string_view bytes);

bool is_valid_utf8(std::string_view bytes);

/// Appends `bytes` to `out`, repaired. With `keep_unfinished` an unfinished character at the end is
/// left out; returns how many bytes were taken (all, or all but at most 3).
size_t append_repaired_utf8(std::string_view bytes, bool keep_unfinished, std::string& out);

/// Code point at `p` of well-formed UTF-8; `size` becomes its length.
inline char32_t decode_valid_utf8(const char* p, size_t& size) {
    const auto byte = [p](int i) { return static_cast<char32_t>(static_cast<uint8_t>(p[i])); };
    const char32_t b0 = byte(0);
    if (b0 < 0x80) {
        size = 1;
        return b0;
    }
    if (b0 < 0xE0) {
        size = 2;
        return (b0 & 0x1F) << 6 | (byte(1) & 0x3F);
    }
    if (b0 < 0xF0) {
        size = 3;
        return (b0 & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    }
    size = 4;
    return (b0 & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

/// Appends the UTF-8 of a code point (no surrogate, below 0x110000).
void append_utf8(char32_t code_point, std::string& out);

}  // namespace deepinfer
