// The character classes that the pre-tokenizer's regular expressions tell apart.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer {

/// General category of Unicode 16.0, first letter; kSpace is the property White_Space (its
/// characters are in none of the other five). kNone: controls, unassigned, private use, formats.
enum class CharClass : uint8_t { kNone, kLetter, kMark, kNumber, kPunctuation, kSymbol, kSpace };

struct UnicodeRun {
    uint32_t first;
    uint32_t length;
    CharClass char_class;
};

/// Ascending, without overlap (unicode_tables.cpp).
extern const UnicodeRun kUnicodeRuns[];
extern const size_t kNumUnicodeRuns;

/// One class per code point in [0, 0x110000): 1.1 MB, of which ordinary text touches a few pages.
/// Built from the runs at the first call, from any thread.
const CharClass* unicode_class_table();

}  // namespace deepinfer
