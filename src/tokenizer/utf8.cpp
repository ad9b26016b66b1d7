#include "tokenizer/utf8.h"

namespace deepinfer {

Utf8Part utf8_first_part(std::string_view bytes) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
    const uint8_t b0 = byte(0);
    if (b0 < 0x80) return {1, true, false};
    // Length, and the narrower range that some first bytes demand of the second (Unicode, table
    // 3-7).
    size_t length = 0;
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (b0 >= 0xC2 && b0 <= 0xDF) {
        length = 2;
    } else if (b0 >= 0xE0 && b0 <= 0xEF) {
        length = 3;
        if (b0 == 0xE0) low = 0xA0;
        if (b0 == 0xED) high = 0x9F;
    } else if (b0 >= 0xF0 && b0 <= 0xF4) {
        length = 4;
        if (b0 == 0xF0) low = 0x90;
        if (b0 == 0xF4) high = 0x8F;
    } else {
        return {1, false, false};
    }
    for (size_t i = 1; i < length; ++i) {
        if (i == bytes.size()) return {i, false, true};
        if (byte(i) < low || byte(i) > high) return {i, false, false};
        low = 0x80;
        high = 0xBF;
    }
    return {length, true, false};
}

bool is_valid_utf8(std::string_view bytes) {
    size_t i = 0;
    while (i < bytes.size()) {
        if (static_cast<uint8_t>(bytes[i]) < 0x80) {
            ++i;
            continue;
        }
        const Utf8Part part = utf8_first_part(bytes.substr(i));
        if (!part.valid) return false;
        i += part.size;
    }
    return true;
}

size_t append_repaired_utf8(std::string_view bytes, bool keep_unfinished, std::string& out) {
    size_t begin = 0;  // of the well-formed run that is not yet copied
    size_t i = 0;
    while (i < bytes.size()) {
        const Utf8Part part = utf8_first_part(bytes.substr(i));
        if (part.valid) {
            i += part.size;
            continue;
        }
        out.append(bytes, begin, i - begin);
        if (part.unfinished && keep_unfinished) return i;
        out += kReplacementCharacter;
        i += part.size;
        begin = i;
    }
    out.append(bytes, begin, i - begin);
    return i;
}

void append_utf8(char32_t code_point, std::string& out) {
    const auto put = [&out](char32_t byte) {
        out += static_cast<char>(static_cast<uint8_t>(byte));
    };
    if (code_point < 0x80) {
        put(code_point);
    } else if (code_point < 0x800) {
        put(0xC0 | code_point >> 6);
        put(0x80 | (code_point & 0x3F));
    } else if (code_point < 0x10000) {
        put(0xE0 | code_point >> 12);
        put(0x80 | (code_point >> 6 & 0x3F));
        put(0x80 | (code_point & 0x3F));
    } else {
        put(0xF0 | code_point >> 18);
        put(0x80 | (code_point >> 12 & 0x3F));
        put(0x80 | (code_point >> 6 & 0x3F));
        put(0x80 | (code_point & 0x3F));
    }
}

}  // namespace deepinfer
