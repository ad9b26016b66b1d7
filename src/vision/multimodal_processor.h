// MultimodalProcessor: pictures are decoded, resized and cut beside the engine, never on its step
// path.
//
// A pool of workers (processes by default, vision/picture_worker.h) takes pictures in order of
// submission. Bytes are bounded, not jobs: a request's pictures hold a lease on max_bytes from the
// moment they are taken up until the last user of the prepared pictures is gone, and later requests
// wait for theirs. Every function may be called from any thread; callbacks run on a worker's
// thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "vision/image_preprocess.h"
#include "vision/picture_worker.h"

namespace deepinfer {

/// The pictures of a request, ready for the tower, and their share of the processor's bytes.
struct PreparedImages {
    std::vector<std::shared_ptr<const PreparedImage>> images;  ///< in the request's order
    std::shared_ptr<void> lease;
};

class MultimodalProcessor {
  public:
    struct Options {
        VisionConfig config;
        int workers = 1;
        bool processes = true;  ///< false: the workers' threads decode themselves
        int64_t max_bytes = int64_t{1} << 30;
        int64_t timeout_ms = 60'000;  ///< of one picture
    };
    struct Job {
        uint64_t request = 0;
        std::vector<ImageInput> images;
        std::vector<ImagePlan> plans;  ///< plan_input() of each
        int64_t max_side = 0;
        std::function<void(Result<PreparedImages>)> done;  ///< exactly once unless cancelled
    };
    struct Stats {
        int64_t prepared = 0, failed = 0, crashes = 0, bytes_in_flight = 0, waiting = 0;
    };

    /// Forks the zygote (call it early) and starts the workers. kInvalidArgument, kInternal.
    static Result<std::unique_ptr<MultimodalProcessor>> start(const Options& options);
    /// Drops what waits; callbacks that have not run never will.
    ~MultimodalProcessor();

    /// kOutOfRange with both numbers when the pictures can never fit into max_bytes.
    Status check_fits(const std::vector<ImageInput>& images,
                      const std::vector<ImagePlan>& plans) const;
    void submit(Job job);
    /// Forgets a request: waiting pictures are dropped, a running one is finished and thrown away.
    void cancel(uint64_t request);
    Stats stats() const;
    /// Processes of the pool (0: not started), for tests that kill them.
    std::vector<pid_t> worker_pids() const;

  private:
    struct Active {
        Job job;
        PreparedImages result;
        int64_t bytes = 0;
        size_t next = 0, finished = 0;
        bool failed = false;
    };
    struct Shared;

    explicit MultimodalProcessor(const Options& options);
    int64_t bytes_of(const std::vector<ImageInput>& images,
                     const std::vector<ImagePlan>& plans) const;
    void work(size_t index);
    /// The next picture to take up; null while there is none or its bytes do not fit.
    std::shared_ptr<Active> next_locked(size_t* image);
    void forget_locked(const std::shared_ptr<Active>& active);
    void finish(const std::shared_ptr<Active>& active, size_t image, Result<PreparedImage> r);
    Status refresh_worker(size_t index);
    Result<PreparedImage> prepare(size_t index, const Active& active, size_t image);

    const Options options_;
    std::unique_ptr<WorkerZygote> zygote_;
    std::shared_ptr<Shared> shared_;             ///< its mutex guards everything below
    std::deque<std::shared_ptr<Active>> queue_;  ///< with pictures left to take up
    std::map<uint64_t, std::shared_ptr<Active>> active_;
    std::vector<std::unique_ptr<PictureWorker>> workers_;  ///< each its thread's alone
    std::vector<pid_t> pids_;
    Stats stats_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace deepinfer
