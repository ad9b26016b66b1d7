#include "engine/waiting_queue.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace deepinfer {

int64_t WaitingQueue::effective_class(const Sequence& seq, int64_t now_us) const {
    return seq.spec.priority - (now_us - seq.arrival_us) / age_us_;
}

void WaitingQueue::push(Sequence* seq) {
    lines_[{seq->spec.priority, seq->spec.tenant}].push_back(seq);
    ++size_;
}

void WaitingQueue::push_front(Sequence* seq) {
    lines_[{seq->spec.priority, seq->spec.tenant}].push_front(seq);
    ++size_;
}

Sequence* WaitingQueue::best(const TenantCounters& tenants, int64_t now_us) const {
    Sequence* best = nullptr;
    std::tuple<int64_t, int64_t, uint64_t> best_rank;
    for (const auto& [line, queue] : lines_) {
        Sequence* head = queue.front();
        const std::tuple<int64_t, int64_t, uint64_t> rank(
            effective_class(*head, now_us), tenants.value(line.second), head->arrival);
        if (best == nullptr || rank < best_rank) {
            best = head;
            best_rank = rank;
        }
    }
    return best;
}

void WaitingQueue::remove(Sequence* seq) {
    const auto it = lines_.find({seq->spec.priority, seq->spec.tenant});
    DI_CHECK(it != lines_.end());
    const auto pos = std::find(it->second.begin(), it->second.end(), seq);
    DI_CHECK(pos != it->second.end());
    it->second.erase(pos);
    if (it->second.empty()) lines_.erase(it);
    --size_;
}

}  // namespace deepinfer
