// A pool of worker threads with static work split.
//
// `parallel_for(n, fn)` calls fn(begin, end) so that the ranges tile [0, n); the calling thread is
// worker 0 and takes part. The split depends on n and the thread count alone, and callers must not
// let results depend on it (each index is computed alone). One parallel_for runs at a time per
// pool; calls from inside fn run serially. Workers spin briefly, then sleep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace deepinfer {

class ThreadPool {
  public:
    /// num_threads >= 1, the calling thread included.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return num_threads_; }

    /// fn(begin, end) over disjoint ranges that cover [0, n). `grain`: no range is shorter unless n
    /// is, so small work stays on fewer threads. Blocks until all ranges are done.
    void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn);

    /// Threads that this container may use: affinity mask and cgroup CPU quota, at least 1.
    static int available_threads();

  private:
    struct State;
    int num_threads_;
    std::unique_ptr<State> state_;
};

}  // namespace deepinfer
