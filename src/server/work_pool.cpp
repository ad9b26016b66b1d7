#include "server/work_pool.h"

#include <pthread.h>
#include <time.h>

namespace deepinfer::server {

WorkPool::WorkPool(int num_threads, size_t max_waiting) : max_waiting_(max_waiting) {
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

bool WorkPool::submit(std::function<void()> work) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (stopping_ || queue_.size() >= max_waiting_) return false;
        queue_.push_back(std::move(work));
    }
    wake_.notify_one();
    return true;
}

void WorkPool::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        std::function<void()> work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        work();
        work = nullptr;
        lock.lock();
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
