// Finds the spellings of added tokens in text: leftmost, and the longest one that starts there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer {

/// A byte trie. Built once, then read from any thread.
class AddedTokenTrie {
  public:
    struct Match {
        size_t begin = 0;
        size_t size = 0;  ///< 0: none
        int32_t id = -1;
    };

    AddedTokenTrie();
    /// `text` is not empty; false if it is there already.
    bool add(std::string_view text, int32_t id);

    /// The first match in `text` at or after `from`. Time: text length times the longest token.
    Match find(std::string_view text, size_t from) const;
    /// Id of exactly this spelling, or −1.
    int32_t id_of(std::string_view text) const;

  private:
    struct Node {
        uint32_t first_child = 0;  // 0: none (the root is nobody's child)
        uint32_t next_sibling = 0;
        int32_t id = -1;
        uint8_t byte = 0;
    };

    uint32_t child(uint32_t node, uint8_t byte) const;

    std::array<uint32_t, 256> root_children_{};  // most text fails here: one look-up a byte
    std::vector<Node> nodes_;
};

}  // namespace deepinfer
