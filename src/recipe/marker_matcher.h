// Finds one marker in a stream of bytes, wherever the stream is cut (Knuth-Morris-Pratt).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::recipe {

class MarkerMatcher {
  public:
    /// `with_newlines`: the match also takes the newlines before the marker. A newline that breaks
    /// off a marker already begun is text and begins no run. Requires a non-empty marker, and one
    /// without newlines if `with_newlines`.
    MarkerMatcher(std::string marker, bool with_newlines)
        : marker_(std::move(marker)), with_newlines_(with_newlines), border_(marker_.size(), 0) {
        for (size_t i = 1; i < marker_.size(); ++i) {
            size_t k = border_[i - 1];
            while (k > 0 && marker_[k] != marker_[i]) k = border_[k - 1];
            border_[i] = marker_[k] == marker_[i] ? k + 1 : 0;
        }
    }

    /// True: the marker ends with this byte; match_length() bytes up to here belong to it.
    bool feed(char c) {
        if (progress_ == 0 && with_newlines_ && c == '\n') {
            ++run_;
            return false;
        }
        const size_t before = progress_;
        while (progress_ > 0 && marker_[progress_] != c) progress_ = border_[progress_ - 1];
        if (progress_ != before) run_ = 0;
        if (marker_[progress_] == c) {
            ++progress_;
        } else {
            run_ = 0;
        }
        return progress_ == marker_.size();
    }

    size_t match_length() const { return run_ + marker_.size(); }
    /// Bytes that may still become part of a match.
    size_t num_held() const { return run_ + progress_; }
    void reset() { run_ = progress_ = 0; }

    char first_byte() const { return marker_.front(); }
    bool with_newlines() const { return with_newlines_; }
    const std::string& marker() const { return marker_; }

  private:
    std::string marker_;
    bool with_newlines_;
    std::vector<size_t> border_;
    size_t run_ = 0;       // newlines before the marker
    size_t progress_ = 0;  // bytes of the marker seen
};

}  // namespace deepinfer::recipe
