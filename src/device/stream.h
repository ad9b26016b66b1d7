// Stream: where an op runs. Every op takes one; work on a stream happens in order.
//
// On a CPU it carries the thread pool and ops have finished when they return; on a GPU it wraps the
// device's stream and ops return at once. Subclassed by backends, which downcast their own.
#pragma once

#include <cstdint>
#include <functional>

#include "base/thread_pool.h"
#include "deepinfer/status.h"

namespace deepinfer {

class Stream {
  public:
    virtual ~Stream() = default;
    /// Returns when everything queued so far is done.
    virtual void synchronize() = 0;

    /// The first failure of anything queued here, complete after synchronize(). It stays: results
    /// of later work are worth nothing.
    virtual Status status() const { return {}; }

    /// Independent work: what is queued on fork()'s stream may run beside what is queued here until
    /// join(), which makes later work here wait for it. Without a second queue both are this stream
    /// and nothing happens. Forks do not nest: the second queue is one, in order.
    virtual Stream& fork() { return *this; }
    virtual void join() {}
};

/// The stream of the host backends (ref, exact, cpu). Not owned: the pool outlives it.
class CpuStream final : public Stream {
  public:
    explicit CpuStream(ThreadPool* pool) : pool_(pool) {}
    void synchronize() override {}
    ThreadPool& pool() { return *pool_; }

  private:
    ThreadPool* pool_;
};

/// parallel_for on a host stream. fn(begin, end) must compute each index independently of the
/// split.
inline void parallel_for(Stream& stream,
                         int64_t n,
                         int64_t grain,
                         const std::function<void(int64_t, int64_t)>& fn) {
    static_cast<CpuStream&>(stream).pool().parallel_for(n, grain, fn);
}

}  // namespace deepinfer
