#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // 256 + the 68 bytes that do not print

struct Tables {
    std::array<int16_t, kAlphabetEnd> byte_of_char;  // −1: not in the alphabet
    std::array<char32_t, 256> char_of_byte;
};

const Tables& tables() {
    static const Tables built = [] {
        Tables t;
        t.byte_of_char.fill(-1);
        char32_t next = 256;
        for (int byte = 0; byte < 256; ++byte) {
            const bool prints =
                (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
            const char32_t c = prints ? static_cast<char32_t>(byte) : next++;
            t.byte_of_char[c] = static_cast<int16_t>(byte);
            t.char_of_byte[static_cast<size_t>(byte)] = c;
        }
        return t;
    }();
    return built;
}

}  // namespace

bool append_alphabet_bytes(std::string_view token, std::string& out) {
    const auto& byte_of_char = tables().byte_of_char;
    const size_t before = out.size();
    for (size_t i = 0; i < token.size();) {
        size_t size = 0;
        const char32_t c = decode_valid_utf8(token.data() + i, size);
        if (c >= kAlphabetEnd || byte_of_char[c] < 0) {
            out.resize(before);
            return false;
        }
        out += static_cast<char>(static_cast<uint8_t>(byte_of_char[c]));
        i += size;
    }
    return true;
}

std::string alphabet_spelling(std::string_view bytes) {
    const auto& char_of_byte = tables().char_of_byte;
    std::string out;
    for (const char c : bytes) append_utf8(char_of_byte[static_cast<uint8_t>(c)], out);
    return out;
}

}  // namespace deepinfer
