// MaskFiller: makes the masks of constrained rows, and lets nobody wait for a slow one.
//
// Masks take microseconds, so they are made on the caller's thread. A form that was slow once (an
// ambiguous grammar) is filled by a thread of its own from then on; when that takes longer than the
// budget, the caller goes on without it: the row is late, and its sequence waits alone. Time is
// processor time of the thread that works, so a busy machine makes nobody late.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "sampler/token_constraint.h"

namespace deepinfer {

/// One sequence's masks. Between fill() and done() the form belongs to the filler.
struct MaskJob {
    std::shared_ptr<TokenConstraint> form;
    std::vector<int32_t> drafts;
    std::vector<std::vector<uint32_t>> rows;  ///< RowMask::rows
    bool slow = false;  ///< in: fill it elsewhere; out: it has taken longer than slow_us
};

struct MaskBudget {
    int64_t slow_us = 1000;       ///< of processor time: from here on a form gets a thread
    int64_t late_us = 5000;       ///< of processor time: nobody waits longer
    int64_t most_us = 5'000'000;  ///< of processor time: the form allows nothing any more
};

/// Used by one thread.
class MaskFiller {
  public:
    explicit MaskFiller(MaskBudget budget) : budget_(budget) {}
    /// Waits for late jobs.
    ~MaskFiller();

    /// Fills all jobs that are not late. Ask done() for each.
    void fill(const std::vector<std::shared_ptr<MaskJob>>& jobs);
    bool done(const MaskJob& job) const;
    /// Until a late job is done, a millisecond at most.
    void wait_a_little();

  private:
    /// Late rows hold a thread each; with this many of them everybody waits.
    static constexpr size_t kMostThreads = 8;
    struct Worker {
        std::thread thread;
        const MaskJob* job = nullptr;  ///< null: idle
        int64_t began_us = 0;          ///< its processor time then
    };

    void run(Worker* self);
    bool spent(Worker& worker) const;

    const MaskBudget budget_;
    mutable std::mutex mutex_;
    std::condition_variable work_, changed_;
    std::deque<std::shared_ptr<MaskJob>> queue_;
    std::deque<Worker> workers_;              ///< addresses stay
    std::vector<const MaskJob*> unfinished_;  ///< queued or running
    bool stop_ = false;
};

}  // namespace deepinfer
