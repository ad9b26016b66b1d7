// The byte-level alphabet: each of the 256 bytes has a printable character of its own, in which
// tokenizer.json writes tokens ("Ġthe" is " the"). Bytes that print in Latin-1 stand for
// themselves, the other 68 are U+0100 … U+0143 in ascending order (the table of GPT-2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

/// Appends the bytes that `token` (well-formed UTF-8) spells; false, with `out` unchanged, if a
/// character is outside the alphabet.
bool append_alphabet_bytes(std::string_view token, std::string& out);

/// The spelling of `bytes` in the alphabet.
std::string alphabet_spelling(std::string_view bytes);

}  // namespace deepinfer
