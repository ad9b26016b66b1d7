#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace deepinfer {
namespace {

// Spinning bridges the gap between two ops of one step (microseconds); longer waits sleep.
constexpr int kSpinRounds = 2000;

inline void cpu_relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

thread_local bool inside_parallel_for = false;

}  // namespace

struct ThreadPool::State {
    std::vector<std::thread> workers;
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<uint64_t> generation{0};
    std::atomic<int> pending{0};
    std::atomic<bool> stop{false};
    // Written before `generation` moves, read after it was seen to move.
    const std::function<void(int64_t, int64_t)>* fn = nullptr;
    int64_t n = 0;
    int parts = 0;
    std::mutex caller;  // one parallel_for at a time

    void run_part(int part) const {
        const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
        if (begin < end) (*fn)(begin, end);
    }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(std::max(1, num_threads)), state_(new State) {
    for (int i = 1; i < num_threads_; ++i) {
        const auto work = [this, i] {
            State& s = *state_;
            inside_parallel_for = true;
            uint64_t seen = 0;
            for (;;) {
                int spins = 0;
                while (s.generation.load(std::memory_order_acquire) == seen &&
                       !s.stop.load(std::memory_order_relaxed)) {
                    if (++spins < kSpinRounds) {
                        cpu_relax();
                        continue;
                    }
                    std::unique_lock<std::mutex> lock(s.mutex);
                    s.wake.wait(lock, [&] {
                        return s.generation.load(std::memory_order_acquire) != seen ||
                               s.stop.load();
                    });
                }
                if (s.stop.load()) return;
                seen = s.generation.load(std::memory_order_acquire);
                if (i < s.parts) s.run_part(i);
                s.pending.fetch_sub(1, std::memory_order_acq_rel);
            }
        };
        try {
            state_->workers.emplace_back(work);
        } catch (const std::system_error&) {
            // A process or memory limit: go on with the threads there are. Results do not depend on
            // it.
            break;
        }
    }
    num_threads_ = static_cast<int>(state_->workers.size()) + 1;
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard<std::mutex> lock(state_->mutex);
        state_->stop.store(true);
    }
    state_->wake.notify_all();
    for (std::thread& t : state_->workers) t.join();
}

void ThreadPool::parallel_for(int64_t n,
                              int64_t grain,
                              const std::function<void(int64_t, int64_t)>& fn) {
    if (n <= 0) return;
    const int64_t parts =
        std::min<int64_t>(num_threads_, std::max<int64_t>(1, n / std::max<int64_t>(1, grain)));
    if (parts <= 1 || inside_parallel_for) {
        fn(0, n);
        return;
    }
    State& s = *state_;
    std::lock_guard<std::mutex> one(s.caller);
    s.fn = &fn;
    s.n = n;
    s.parts = static_cast<int>(parts);
    s.pending.store(num_threads_ - 1, std::memory_order_relaxed);
    {
        // The lock pairs with the sleeper's predicate check: without it a wake-up could be lost.
        std::lock_guard<std::mutex> lock(s.mutex);
        s.generation.fetch_add(1, std::memory_order_release);
    }
    s.wake.notify_all();
    inside_parallel_for = true;
    s.run_part(0);
    inside_parallel_for = false;
    for (int spins = 0; s.pending.load(std::memory_order_acquire) != 0; ++spins) {
        if (spins < kSpinRounds) {
            cpu_relax();
        } else {
            std::this_thread::yield();
        }
    }
}

int ThreadPool::available_threads() {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0
                ? CPU_COUNT(&set)
                : static_cast<int>(std::thread::hardware_concurrency());
    std::ifstream f("/sys/fs/cgroup/cpu.max");  // cgroup v2: "max 100000" or "150000 100000"
    std::string quota;
    double period = 0;
    if (f >> quota >> period && quota != "max" && period > 0) {
        n = std::min(n, static_cast<int>(std::ceil(std::atof(quota.c_str()) / period)));
    }
    return std::max(1, n);
}

}  // namespace deepinfer
