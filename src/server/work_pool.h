// Threads for the work that would hold up an I/O thread: reading bodies, rendering, tokenizing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace deepinfer::server {

class WorkPool {
  public:
    /// What one lane (a tenant, say) may have of it.
    struct Lanes {
        size_t running = SIZE_MAX;
        size_t waiting = SIZE_MAX;
    };
    WorkPool(int num_threads, size_t max_waiting) : WorkPool(num_threads, max_waiting, Lanes()) {}
    WorkPool(int num_threads, size_t max_waiting, Lanes lanes);
    /// Runs what is queued, then ends.
    ~WorkPool();
    WorkPool(const WorkPool&) = delete;
    WorkPool& operator=(const WorkPool&) = delete;

    /// False if too much waits already; `work` is then not run. `work` does not throw.
    bool submit(std::function<void()> work, const std::string& lane = {});
    /// Processor time of the pool's threads.
    double cpu_seconds() const;

  private:
    struct Item {
        std::function<void()> work;
        std::string lane;
    };
    struct Lane {
        size_t running = 0, waiting = 0;
    };
    void run();
    /// The first whose lane may have one more running.
    std::deque<Item>::iterator next();

    const size_t max_waiting_;
    const Lanes limits_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Item> queue_;
    std::map<std::string, Lane> lanes_;  ///< those that have anything
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

/// Processor time of a running thread.
double thread_cpu_seconds(std::thread& thread);

}  // namespace deepinfer::server
