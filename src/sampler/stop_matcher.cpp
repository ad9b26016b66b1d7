#include "sampler/stop_matcher.h"

#include <utility>

namespace deepinfer {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop) {
    for (const std::string& s : stops) {
        stop_bytes_.push_back(static_cast<int32_t>(s.size()));
        for (const char c : s) {
            uint16_t& cls = class_of_[static_cast<uint8_t>(c)];
            if (cls == 0) cls = static_cast<uint16_t>(num_classes_++);
        }
    }
    constexpr int32_t kNone = -1;
    const auto add_node = [&](int32_t depth) {
        nodes_.push_back({depth, -1, 0});
        edges_.insert(edges_.end(), num_classes_, kNone);
        return static_cast<int32_t>(nodes_.size() - 1);
    };
    add_node(0);
    for (size_t i = 0; i < stops.size(); ++i) {
        if (stops[i].empty()) continue;
        int32_t node = 0;
        for (const char c : stops[i]) {
            int32_t next = edge(node, static_cast<uint8_t>(c));
            if (next == kNone) {
                next = add_node(nodes_[static_cast<size_t>(node)].depth + 1);
                edge(node, static_cast<uint8_t>(c)) = next;
            }
            node = next;
        }
        if (nodes_[static_cast<size_t>(node)].stop < 0) {  // the first of two equal strings
            nodes_[static_cast<size_t>(node)].stop = static_cast<int32_t>(i);
        }
    }
    // Breadth first: a node's fail link is shallower, hence complete.
    std::vector<int32_t> order{0};
    for (size_t at = 0; at < order.size(); ++at) {
        const int32_t node = order[at];
        const int32_t fail = nodes_[static_cast<size_t>(node)].fail;
        for (size_t c = 0; c < num_classes_; ++c) {
            int32_t& to = edges_[static_cast<size_t>(node) * num_classes_ + c];
            const int32_t via_fail =
                node == 0 ? 0 : edges_[static_cast<size_t>(fail) * num_classes_ + c];
            if (to == kNone) {
                to = via_fail;
                continue;
            }
            Node& child = nodes_[static_cast<size_t>(to)];
            child.fail = via_fail;
            if (child.stop < 0) child.stop = nodes_[static_cast<size_t>(via_fail)].stop;
            order.push_back(to);
        }
    }
}

std::string StopMatcher::push(std::string_view text, bool may_stop) {
    if (stopped()) return {};
    if (!active()) return std::string(text);
    for (size_t i = 0; i < text.size(); ++i) {
        state_ = edge(state_, static_cast<uint8_t>(text[i]));
        const int32_t stop = nodes_[static_cast<size_t>(state_)].stop;
        if (stop < 0 || !may_stop) continue;
        matched_ = stop;
        held_.append(text.substr(0, i + 1));
        if (!include_stop_) {
            held_.resize(held_.size() -
                         static_cast<size_t>(stop_bytes_[static_cast<size_t>(stop)]));
        }
        return std::exchange(held_, {});
    }
    held_.append(text);
    const size_t keep = static_cast<size_t>(nodes_[static_cast<size_t>(state_)].depth);
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return out;
}

std::string StopMatcher::flush() {
    if (stopped()) return {};
    state_ = 0;
    return std::exchange(held_, {});
}

}  // namespace deepinfer
