// Cuts text into the pieces that BPE may merge inside of: the official pre-tokenizer, written by
// hand.
//
// tokenizer.json describes it as three regular expressions, each applied to every piece that the
// one before left; matches and the gaps between them both become pieces (tokenizer_file.cpp holds
// the expressions and refuses a file with others):
//   1. runs of up to three numbers,
//   2. runs of Han (4E00–9FA5), Hiragana and Katakana,
//   3. words, punctuation with what follows, line ends, white space.
#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/unicode_classes.h"

namespace deepinfer {

/// Reads the pieces of one text from left to right. Joined they are the text. Time is linear.
class PieceReader {
  public:
    /// `text` is well-formed UTF-8 and outlives the reader.
    explicit PieceReader(std::string_view text) : text_(text), class_of_(unicode_class_table()) {}

    /// The next piece, never empty; false at the end.
    bool next(std::string_view& piece);

  private:
    struct Char {
        char32_t code = 0;
        size_t size = 0;
        CharClass char_class = CharClass::kNone;
    };

    Char char_at(size_t pos) const;
    size_t number_end(size_t pos) const;
    size_t region_end(size_t pos, bool han_kana) const;
    size_t match_end(size_t pos) const;
    size_t letters_end(size_t pos) const;
    size_t space_match_end(size_t pos) const;

    std::string_view text_;
    const CharClass* class_of_;
    size_t pos_ = 0;
    size_t region_end_ = 0;   // the third expression sees [.., region_end_) as its whole input
    size_t pending_end_ = 0;  // a match already found at pos_, while the gap before it was returned
};

}  // namespace deepinfer
