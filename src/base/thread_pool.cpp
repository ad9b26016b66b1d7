#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/env_flags.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace deepinfer {
namespace {

// Spinning bridges the gap between two ops of one step (microseconds); longer waits sleep. Longer
// spins were tried: with one millisecond a sleeper loses its core to fewer scheduler ticks, but two
// processes on the same cores spin against each other and take nine times as long. Threads that
// share cores (more of them than cores) sleep at once, for whoever is waited for needs the core.
constexpr std::chrono::microseconds kSpinTime{50}, kSharedSpinTime{20};
constexpr int kRoundsPerLook = 64;  // pauses between two looks at the clock

inline void cpu_relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

/// Spins until done() or the time is over; returns done().
template <typename Done>
bool spin(std::chrono::microseconds time, const Done& done) {
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
        for (int i = 0; i < kRoundsPerLook; ++i) {
            if (done()) return true;
            cpu_relax();
        }
        if (std::chrono::steady_clock::now() - begin > time) return done();
    }
}

thread_local bool inside_parallel_for = false;

/// DEEPINFER_AFFINITY=1: the cores that this process may use, in order; else none. A bad value is
/// refused where a backend is made.
std::vector<int> cores_to_pin() {
    std::vector<int> cores;
    const auto wanted = env_bool("DEEPINFER_AFFINITY");
    cpu_set_t set;
    if (!wanted.ok() || !wanted.value().value_or(false) ||
        sched_getaffinity(0, sizeof set, &set) != 0)
        return cores;
    for (int c = 0; c < CPU_SETSIZE; ++c) {
        if (CPU_ISSET(c, &set)) cores.push_back(c);
    }
    return cores;
}

void pin_this_thread(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

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
    std::chrono::microseconds spin_time{};
    std::vector<int> cores;         // core of thread i, if threads are pinned
    std::thread::id pinned_caller;  // under `caller`: thread 0 as it was seen last

    void run_part(int part) const {
        const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
        if (begin < end) (*fn)(begin, end);
    }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(std::max(1, num_threads)), state_(new State) {
    state_->spin_time = num_threads_ <= available_threads() ? kSpinTime : kSharedSpinTime;
    state_->cores = cores_to_pin();
    if (state_->cores.size() < static_cast<size_t>(num_threads_)) state_->cores.clear();
    for (int i = 1; i < num_threads_; ++i) {
        const auto work = [this, i] {
            State& s = *state_;
            inside_parallel_for = true;
            if (!s.cores.empty()) pin_this_thread(s.cores[static_cast<size_t>(i)]);
            uint64_t seen = 0;
            for (;;) {
                const auto called = [&] {
                    return s.generation.load(std::memory_order_acquire) != seen || s.stop.load();
                };
                if (!spin(s.spin_time, called)) {
                    std::unique_lock<std::mutex> lock(s.mutex);
                    s.wake.wait(lock, called);
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
    if (!s.cores.empty() && s.pinned_caller != std::this_thread::get_id()) {
        pin_this_thread(s.cores[0]);
        s.pinned_caller = std::this_thread::get_id();
    }
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
    const auto done = [&] { return s.pending.load(std::memory_order_acquire) == 0; };
    if (spin(s.spin_time, done)) return;
    while (!done()) std::this_thread::yield();
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
