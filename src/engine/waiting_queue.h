// WaitingQueue: sequences that hold no slot, and which of them is next.
//
// Order: effective class (priority, lowered by one for every age_s seconds of waiting), then the
// tenant's service counter, then arrival. Within one (priority, tenant) it is first come, first
// served; a preempted sequence goes back to the front of its line.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "engine/fairness.h"
#include "engine/sequence.h"

namespace deepinfer {

class WaitingQueue {
  public:
    explicit WaitingQueue(int64_t age_us) : age_us_(age_us) {}

    void push(Sequence* seq);
    void push_front(Sequence* seq);
    /// The next one to admit, or null. Does not take it out.
    Sequence* best(const TenantCounters& tenants, int64_t now_us) const;
    /// Takes out a sequence (which must be in it).
    void remove(Sequence* seq);
    int64_t size() const { return size_; }

    /// priority − whole ages waited: what preemption and admission compare.
    int64_t effective_class(const Sequence& seq, int64_t now_us) const;

  private:
    using Line = std::pair<int, std::string>;  // priority, tenant
    std::map<Line, std::deque<Sequence*>> lines_;
    int64_t age_us_;
    int64_t size_ = 0;
};

}  // namespace deepinfer
