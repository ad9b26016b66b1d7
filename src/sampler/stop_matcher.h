// StopMatcher: finds stop strings in the output as it grows, and holds back text that may turn out
// to be the start of one.
//
// An Aho-Corasick automaton over bytes: each byte costs one table look-up however many stop strings
// there are. A match counts at the byte where it ends, the longest one that ends there; so the
// result does not depend on how the text was cut into pieces, and text that was given out is never
// taken back.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

class StopMatcher {
  public:
    /// Empty strings are ignored. include_stop keeps the matched string at the end of the text.
    StopMatcher(const std::vector<std::string>& stops, bool include_stop);

    /// Takes the text of one committed token and returns what may be given out now. After a match
    /// everything further is dropped and "" is returned.
    /// may_stop false: nothing counts as a match that ends in this text.
    std::string push(std::string_view text, bool may_stop = true);
    /// The end came for another reason: gives out what is held.
    std::string flush();

    bool stopped() const { return matched_ >= 0; }
    /// Index in `stops` of the string that matched, or -1.
    int matched_stop() const { return matched_; }
    bool active() const { return nodes_.size() > 1; }

  private:
    struct Node {
        int32_t depth = 0;  ///< bytes held back here: longest suffix that starts a stop string
        int32_t stop = -1;  ///< longest stop string that ends here
        int32_t fail = 0;
    };
    int32_t& edge(int32_t node, uint8_t byte) {
        return edges_[static_cast<size_t>(node) * num_classes_ + class_of_[byte]];
    }

    bool include_stop_;
    std::vector<int32_t> stop_bytes_;       ///< length of each stop string
    std::array<uint16_t, 256> class_of_{};  ///< bytes that occur in no stop string share class 0
    size_t num_classes_ = 1;
    std::vector<Node> nodes_;
    std::vector<int32_t> edges_;  ///< [nodes, num_classes]
    int32_t state_ = 0;
    int matched_ = -1;
    std::string held_;
};

}  // namespace deepinfer
