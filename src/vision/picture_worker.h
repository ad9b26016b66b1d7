// PictureWorker: one place where pictures are decoded and cut, a sandboxed process or this thread.
//
// Decoders are the part most exposed to hostile bytes. A worker process has no files, no network
// and no memory of the engine's beyond what existed when its ancestor was forked; it may read,
// write and map what it is handed (seccomp), within bounds (rlimits). What it returns is pixels,
// copied out before they are trusted with an identity.
//
//   WorkerZygote   forked once, early, single-threaded: forks workers on request
//   PictureWorker  one worker and its socket; dead after a crash or a timeout, replaced by its
//   owner
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "deepinfer/status.h"
#include "vision/image_preprocess.h"

namespace deepinfer {

/// One picture to prepare.
struct PictureJob {
    const ImageInput* input = nullptr;
    ImagePlan plan;
    int64_t max_side = 0;
    std::vector<uint8_t>* patches = nullptr;  ///< out: [num_patches, 3p²]
};

class WorkerZygote {
  public:
    /// Forks. Best called before other threads and large allocations exist.
    static Result<std::unique_ptr<WorkerZygote>> start(const VisionConfig& config);
    /// Ends the zygote and every worker.
    ~WorkerZygote();
    WorkerZygote(const WorkerZygote&) = delete;
    WorkerZygote& operator=(const WorkerZygote&) = delete;

    /// A new worker: the engine's end of its socket, and its process id.
    struct Child {
        int socket = -1;
        pid_t pid = -1;
    };
    Result<Child> spawn();

  private:
    WorkerZygote(int socket, pid_t pid) : socket_(socket), pid_(pid) {}
    std::mutex mutex_;
    int socket_;
    pid_t pid_;
};

class PictureWorker {
  public:
    virtual ~PictureWorker() = default;
    /// kInvalidArgument and kOutOfRange: the picture; kInternal: the worker died or took too long,
    /// and is dead() from now on.
    virtual Status run(const PictureJob& job) = 0;
    /// Whether it can take no more jobs; asked between two of them.
    virtual bool dead() const = 0;
    /// Process id, 0 for this thread.
    virtual pid_t pid() const = 0;
};

/// Decodes on the calling thread.
std::unique_ptr<PictureWorker> make_thread_worker(const VisionConfig& config);
/// Decodes in a process of the zygote's. A job that takes longer than timeout_ms kills it.
Result<std::unique_ptr<PictureWorker>> make_process_worker(WorkerZygote& zygote,
                                                           const VisionConfig& config,
                                                           int64_t timeout_ms);

/// Lowers the calling thread's priority: pictures wait for the engine, never the other way round.
void yield_to_the_engine();

/// For the zygote: serves jobs on `socket` until it closes. Never returns.
[[noreturn]] void run_picture_worker(int socket, const VisionConfig& config);

/// Gives up what a decoder does not need: rlimits, no new privileges, seccomp. kInternal if the
/// kernel refuses.
Status enter_picture_sandbox();

}  // namespace deepinfer
