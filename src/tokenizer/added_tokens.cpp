#include "tokenizer/added_tokens.h"

namespace deepinfer {

AddedTokenTrie::AddedTokenTrie() : nodes_(1) {}

uint32_t AddedTokenTrie::child(uint32_t node, uint8_t byte) const {
    if (node == 0) return root_children_[byte];
    uint32_t c = nodes_[node].first_child;
    while (c != 0 && nodes_[c].byte != byte) c = nodes_[c].next_sibling;
    return c;
}

bool AddedTokenTrie::add(std::string_view text, int32_t id) {
    uint32_t node = 0;
    for (const char c : text) {
        const uint8_t byte = static_cast<uint8_t>(c);
        uint32_t next = child(node, byte);
        if (next == 0) {
            next = static_cast<uint32_t>(nodes_.size());
            Node added;
            added.byte = byte;
            added.next_sibling = nodes_[node].first_child;
            nodes_.push_back(added);
            nodes_[node].first_child = next;
            if (node == 0) root_children_[byte] = next;
        }
        node = next;
    }
    if (nodes_[node].id >= 0) return false;
    nodes_[node].id = id;
    return true;
}

AddedTokenTrie::Match AddedTokenTrie::find(std::string_view text, size_t from) const {
    Match best;
    for (size_t begin = from; begin < text.size() && best.size == 0; ++begin) {
        uint32_t node = root_children_[static_cast<uint8_t>(text[begin])];
        for (size_t end = begin + 1; node != 0; ++end) {
            if (nodes_[node].id >= 0) best = {begin, end - begin, nodes_[node].id};
            if (end == text.size()) break;
            node = child(node, static_cast<uint8_t>(text[end]));
        }
    }
    return best;
}

int32_t AddedTokenTrie::id_of(std::string_view text) const {
    uint32_t node = 0;
    for (const char c : text) {
        node = child(node, static_cast<uint8_t>(c));
        if (node == 0) return -1;
    }
    return nodes_[node].id;
}

}  // namespace deepinfer
