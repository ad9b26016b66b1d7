// Threads for the work that would hold up an I/O thread: reading bodies, rendering, tokenizing.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace deepinfer::server {

class WorkPool {
  public:
    WorkPool(int num_threads, size_t max_waiting);
    /// Runs what is queued, then ends.
    ~WorkPool();
    WorkPool(const WorkPool&) = delete;
    WorkPool& operator=(const WorkPool&) = delete;

    /// False if too much waits already; `work` is then not run. `work` does not throw.
    bool submit(std::function<void()> work);
    /// Processor time of the pool's threads.
    double cpu_seconds() const;

  private:
    void run();

    const size_t max_waiting_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> queue_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

/// Processor time of a running thread.
double thread_cpu_seconds(std::thread& thread);

}  // namespace deepinfer::server
