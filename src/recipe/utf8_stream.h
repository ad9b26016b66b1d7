// Bytes in pieces -> well-formed UTF-8 in pieces.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::recipe {

/// Passes whole characters on and keeps at most the three bytes of an unfinished one. Bytes that
/// can never become a character are U+FFFD at once, one per maximal ill-formed part.
class Utf8Stream {
  public:
    /// Appends what is decided to `out`.
    void push(std::string_view bytes, std::string* out) {
        for (const char c : bytes) push_byte(static_cast<unsigned char>(c), out);
    }
    /// The end: an unfinished character is U+FFFD.
    void finish(std::string* out) {
        if (!pending_.empty()) out->append(kReplacement);
        pending_.clear();
    }
    bool idle() const { return pending_.empty(); }

  private:
    static constexpr const char* kReplacement = "\xEF\xBF\xBD";

    void push_byte(unsigned char c, std::string* out) {
        if (pending_.empty()) {
            start(c, out);
            return;
        }
        const auto first = static_cast<unsigned char>(pending_[0]);
        unsigned char low = 0x80;
        unsigned char high = 0xBF;
        if (pending_.size() == 1) {  // overlong forms, surrogates and beyond U+10FFFF end here
            if (first == 0xE0) low = 0xA0;
            if (first == 0xED) high = 0x9F;
            if (first == 0xF0) low = 0x90;
            if (first == 0xF4) high = 0x8F;
        }
        if (c < low || c > high) {
            out->append(kReplacement);
            pending_.clear();
            start(c, out);
            return;
        }
        pending_.push_back(static_cast<char>(c));
        const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
        if (pending_.size() == length) {
            out->append(pending_);
            pending_.clear();
        }
    }
    void start(unsigned char c, std::string* out) {
        if (c < 0x80) {
            out->push_back(static_cast<char>(c));
        } else if (c >= 0xC2 && c <= 0xF4) {
            pending_.push_back(static_cast<char>(c));
        } else {
            out->append(kReplacement);
        }
    }

    std::string pending_;
};

/// Broken UTF-8 replaced: quoted bytes of a request may have been cut inside a character.
inline std::string valid_utf8(std::string_view bytes) {
    std::string out;
    Utf8Stream stream;
    stream.push(bytes, &out);
    stream.finish(&out);
    return out;
}

}  // namespace deepinfer::recipe
