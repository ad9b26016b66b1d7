#include "engine/mask_filler.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/work_budget.h"

namespace deepinfer {
namespace {

int64_t clock_us(clockid_t clock) {
    timespec t{};
    if (clock_gettime(clock, &t) != 0) return 0;
    return t.tv_sec * 1'000'000 + t.tv_nsec / 1000;
}

/// Row 0 from the committed state, row j as if drafts 1 to j were accepted; the state stays.
void fill_rows(MaskJob& job, const MaskBudget& budget) {
    constexpr int64_t kNsPerUs = 1000;
    WorkBudget work(budget.most_us * kNsPerUs);  // a form that heeds it ends there
    const WorkBudget::Scope scope(&work);
    const int64_t before = clock_us(CLOCK_THREAD_CPUTIME_ID);
    TokenConstraint& form = *job.form;
    job.rows.push_back(form.mask());
    int accepted = 0;
    for (const int32_t token : job.drafts) {
        if (!form.accept(token)) break;  // dead: it and all behind it
        ++accepted;
        job.rows.push_back(form.mask());
    }
    form.rollback(accepted);
    const int64_t spent = clock_us(CLOCK_THREAD_CPUTIME_ID) - before;
    if (spent > budget.slow_us) job.slow = true;
    if (spent > budget.most_us) job.rows.assign(1, std::vector<uint32_t>(job.rows[0].size(), 0));
}

}  // namespace

MaskFiller::~MaskFiller() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    work_.notify_all();
    for (Worker& w : workers_) w.thread.join();
}

void MaskFiller::run(Worker* self) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        const std::shared_ptr<MaskJob> job = std::move(queue_.front());
        queue_.pop_front();
        self->began_us = clock_us(CLOCK_THREAD_CPUTIME_ID);
        self->job = job.get();
        lock.unlock();
        fill_rows(*job, budget_);
        lock.lock();
        self->job = nullptr;
        unfinished_.erase(std::find(unfinished_.begin(), unfinished_.end(), job.get()));
        changed_.notify_all();
    }
}

/// Whether its job has had its time.
bool MaskFiller::spent(Worker& worker) const {
    if (worker.job == nullptr) return false;
    clockid_t clock{};
    if (pthread_getcpuclockid(worker.thread.native_handle(), &clock) != 0) return false;
    return clock_us(clock) - worker.began_us > budget_.late_us;
}

void MaskFiller::fill(const std::vector<std::shared_ptr<MaskJob>>& jobs) {
    std::vector<const MaskJob*> waited;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const std::shared_ptr<MaskJob>& job : jobs) {
            if (!job->slow) continue;
            queue_.push_back(job);
            unfinished_.push_back(job.get());
            waited.push_back(job.get());
        }
    }
    if (!waited.empty()) work_.notify_all();
    for (const std::shared_ptr<MaskJob>& job : jobs) {
        if (std::find(waited.begin(), waited.end(), job.get()) == waited.end())
            fill_rows(*job, budget_);
    }
    if (waited.empty()) return;

    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        size_t on_time = 0, free_workers = 0;
        for (const MaskJob* job : waited) {
            on_time += std::find(unfinished_.begin(), unfinished_.end(), job) != unfinished_.end();
        }
        for (Worker& w : workers_) {
            if (w.job == nullptr) {
                ++free_workers;
            } else if (spent(w)) {
                on_time -= std::find(waited.begin(), waited.end(), w.job) != waited.end();
            } else {
                ++free_workers;  // soon
            }
        }
        if (on_time == 0) return;
        if (!queue_.empty() && free_workers == 0 && workers_.size() < kMostThreads) {
            workers_.emplace_back();
            workers_.back().thread = std::thread([this, w = &workers_.back()] { run(w); });
        }
        constexpr std::chrono::microseconds kGlance{200};
        changed_.wait_for(lock, kGlance);
    }
}

bool MaskFiller::done(const MaskJob& job) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::find(unfinished_.begin(), unfinished_.end(), &job) == unfinished_.end();
}

void MaskFiller::wait_a_little() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!unfinished_.empty()) changed_.wait_for(lock, std::chrono::milliseconds(1));
}

}  // namespace deepinfer
