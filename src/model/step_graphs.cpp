#include "model/step_graphs.h"

#include <algorithm>

namespace deepinfer {

void StepGraphs::run(Device& device,
                     const std::vector<int64_t>& key,
                     const std::function<void()>& step) {
    Stream& stream = device.stream();
    const auto it = entries_.find(key);
    if (it == entries_.end()) {
        make_room();
        entries_[key].used = ++now_;
        step();
        return;
    }
    Entry& entry = it->second;
    entry.used = ++now_;
    if (entry.graph != nullptr && entry.graph->stale(stream)) {
        // Memory moved under it. This run brings everything to its new place; record next time.
        entry.graph.reset();
        step();
        return;
    }
    if (entry.graph == nullptr) {
        entry.graph = device.capture(stream, step);
        if (entry.graph == nullptr) return;  // the stream's status says why; it takes no more work
        ++num_recorded_;
    } else {
        ++num_replayed_;
    }
    entry.graph->launch(stream);
}

void StepGraphs::make_room() {
    if (entries_.size() < capacity_) return;
    // Keys seen once go first: contexts grow, so most old shapes never come back.
    const auto worth = [](const auto& e) {
        return std::pair(e.second.graph != nullptr, e.second.used);
    };
    entries_.erase(
        std::min_element(entries_.begin(), entries_.end(), [&](const auto& a, const auto& b) {
            return worth(a) < worth(b);
        }));
}

}  // namespace deepinfer
