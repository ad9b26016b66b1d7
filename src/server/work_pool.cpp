#include "server/work_pool.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>

namespace deepinfer::server {

WorkPool::WorkPool(int num_threads, size_t max_waiting, Lanes lanes)
    : max_waiting_(max_waiting), limits_(lanes) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkPool::~WorkPool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
}

bool WorkPool::submit(std::function<void()> work, const std::string& lane) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (stopping_ || queue_.size() >= max_waiting_) return false;
        const auto known = lanes_.find(lane);
        if (known != lanes_.end() && known->second.waiting >= limits_.waiting) return false;
        ++lanes_[lane].waiting;
        queue_.push_back({std::move(work), lane});
    }
    wake_.notify_one();
    return true;
}

std::deque<WorkPool::Item>::iterator WorkPool::next() {
    return std::find_if(queue_.begin(), queue_.end(), [this](const Item& item) {
        return lanes_.at(item.lane).running < limits_.running;
    });
}

void WorkPool::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock,
                   [this] { return next() != queue_.end() || (stopping_ && queue_.empty()); });
        const auto it = next();
        if (it == queue_.end()) return;
        Item item = std::move(*it);
        queue_.erase(it);
        Lane& lane = lanes_.at(item.lane);
        --lane.waiting;
        ++lane.running;
        lock.unlock();
        item.work();
        item.work = nullptr;
        lock.lock();
        --lane.running;
        if (lane.running == 0 && lane.waiting == 0) lanes_.erase(item.lane);
        if (!queue_.empty() || stopping_) wake_.notify_all();  // the lane has room again
    }
}

double thread_cpu_seconds(std::thread& thread) {
    clockid_t clock{};
    timespec time{};
    if (!thread.joinable() || pthread_getcpuclockid(thread.native_handle(), &clock) != 0 ||
        clock_gettime(clock, &time) != 0)
        return 0;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double WorkPool::cpu_seconds() const {
    double sum = 0;
    for (const std::thread& t : threads_) sum += thread_cpu_seconds(const_cast<std::thread&>(t));
    return sum;
}

}  // namespace deepinfer::server
