#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

bool is_han_kana(char32_t c) {
    return (c >= 0x3040 && c <= 0x30FF) || (c >= 0x4E00 && c <= 0x9FA5);
}
bool is_ascii_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_ascii_punctuation(char32_t c) {
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
}
bool is_line_end(char32_t c) {
    return c == '\r' || c == '\n';
}
bool is_letter_or_mark(CharClass c) {
    return c == CharClass::kLetter || c == CharClass::kMark;
}
bool is_sign(CharClass c) {
    return c == CharClass::kPunctuation || c == CharClass::kSymbol;
}

}  // namespace

PieceReader::Char PieceReader::char_at(size_t pos) const {
    Char c;
    c.code = decode_valid_utf8(text_.data() + pos, c.size);
    c.char_class = class_of_[c.code];
    return c;
}

size_t PieceReader::number_end(size_t pos) const {
    for (int i = 0; i < 3 && pos < text_.size(); ++i) {
        const Char c = char_at(pos);
        if (c.char_class != CharClass::kNumber) break;
        pos += c.size;
    }
    return pos;
}

size_t PieceReader::region_end(size_t pos, bool han_kana) const {
    while (pos < text_.size()) {
        const Char c = char_at(pos);
        if (c.char_class == CharClass::kNumber || is_han_kana(c.code) != han_kana) break;
        pos += c.size;
    }
    return pos;
}

size_t PieceReader::letters_end(size_t pos) const {
    while (pos < region_end_) {
        const Char c = char_at(pos);
        if (!is_letter_or_mark(c.char_class)) break;
        pos += c.size;
    }
    return pos;
}

// `\s*[\r\n]+|\s+(?!\S)|\s+` on the run of white space at pos: up to its last line end; else all of
// it at the end of the input; else all but the last character, which the next word takes.
size_t PieceReader::space_match_end(size_t pos) const {
    size_t end = pos;
    size_t last_begin = pos;
    size_t line_end = pos;
    while (end < region_end_) {
        const Char c = char_at(end);
        if (c.char_class != CharClass::kSpace) break;
        last_begin = end;
        end += c.size;
        if (is_line_end(c.code)) line_end = end;
    }
    if (line_end > pos) return line_end;
    if (end == region_end_ || last_begin == pos) return end;
    return last_begin;
}

// End of the third expression's match at pos, or pos if there is none.
size_t PieceReader::match_end(size_t pos) const {
    const Char c0 = char_at(pos);
    const size_t next = pos + c0.size;
    if (is_ascii_punctuation(c0.code) && next < region_end_ && is_ascii_letter(text_[next])) {
        size_t end = next + 1;
        while (end < region_end_ && is_ascii_letter(text_[end])) ++end;
        return end;
    }
    if (is_letter_or_mark(c0.char_class)) return letters_end(next);
    if (!is_sign(c0.char_class) && !is_line_end(c0.code) && next < region_end_ &&
        is_letter_or_mark(char_at(next).char_class)) {
        return letters_end(next);
    }
    size_t end = c0.code == ' ' ? next : pos;
    const size_t signs_begin = end;
    while (end < region_end_) {
        const Char c = char_at(end);
        if (!is_sign(c.char_class)) break;
        end += c.size;
    }
    if (end > signs_begin) {
        while (end < region_end_ && is_line_end(static_cast<uint8_t>(text_[end]))) ++end;
        return end;
    }
    return c0.char_class == CharClass::kSpace ? space_match_end(pos) : pos;
}

bool PieceReader::next(std::string_view& piece) {
    if (pos_ == text_.size()) return false;
    size_t end = pending_end_;
    pending_end_ = 0;
    if (end == 0) {
        if (pos_ == region_end_) {
            const Char c = char_at(pos_);
            if (c.char_class == CharClass::kNumber) {
                end = number_end(pos_);
                region_end_ = end;
            } else {
                region_end_ = region_end(pos_, is_han_kana(c.code));
            }
        }
        if (end == 0) end = match_end(pos_);
    }
    if (end == pos_) {  // a gap: up to the next match or the end of the region
        size_t match = pos_;
        while (end < region_end_) {
            match = match_end(end);
            if (match > end) break;
            end += char_at(end).size;
        }
        if (end < region_end_) pending_end_ = match;
    }
    piece = text_.substr(pos_, end - pos_);
    pos_ = end;
    return true;
}

}  // namespace deepinfer
