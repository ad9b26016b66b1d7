#include "vision/picture_worker.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "vision/picture_message.h"

namespace deepinfer {
namespace {

/// Steps of the engine come first where both want a core: a tenth of its weight.
constexpr int kWorkerNiceness = 10;

constexpr int kServiceSocket = 3;  // where the zygote and the workers keep their socket

Status failed(const std::string& what) {
    return Status(StatusCode::kInternal, what + ": " + std::strerror(errno));
}

/// A descriptor that closes itself.
class Fd {
  public:
    explicit Fd(int fd = -1) : fd_(fd) {}
    ~Fd() {
        if (fd_ >= 0) close(fd_);
    }
    Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    Fd& operator=(Fd&& o) noexcept {
        std::swap(fd_, o.fd_);
        return *this;
    }
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

/// Memory that two processes map. Sealed: neither side can change its size under the other.
Result<Fd> memory_file(size_t bytes) {
    Fd fd(memfd_create("picture", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd.get() < 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        return failed("memory for a picture");
    if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return failed("sealing a picture's memory");
    return fd;
}

bool write_all(int fd, const void* data, size_t bytes) {
    const auto* at = static_cast<const char*>(data);
    off_t offset = 0;
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, at, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        offset += n;
        bytes -= static_cast<size_t>(n);
    }
    return true;
}

bool read_all(int fd, void* data, size_t bytes) {
    auto* at = static_cast<char*>(data);
    off_t offset = 0;
    while (bytes > 0) {
        const ssize_t n = pread(fd, at, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        offset += n;
        bytes -= static_cast<size_t>(n);
    }
    return true;
}

// ---- the worker's side

Status serve(const PictureRequest& r, int in, int out, const VisionConfig& config) {
    const auto input_bytes = static_cast<size_t>(r.input_bytes),
               output_bytes = static_cast<size_t>(r.output_bytes);
    void* from = mmap(nullptr, input_bytes, PROT_READ, MAP_SHARED, in, 0);
    if (from == MAP_FAILED)
        return Status(StatusCode::kResourceExhausted, "no memory for a picture");
    void* to = mmap(nullptr, output_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, out, 0);
    if (to == MAP_FAILED) {
        munmap(from, input_bytes);
        return Status(StatusCode::kResourceExhausted, "no memory for a picture");
    }
    Status status;
    try {
        ImageInput input;
        const auto* bytes = static_cast<const uint8_t*>(from);
        if (r.width > 0) {
            input.width = r.width;
            input.height = r.height;
            input.rgb.assign(bytes, bytes + input_bytes);
        } else {
            input.encoded.assign(reinterpret_cast<const char*>(bytes), input_bytes);
        }
        input.detail = r.low_detail != 0 ? ImageDetail::kLow : ImageDetail::kHigh;
        input.alpha = r.drop_alpha != 0 ? ImageAlpha::kDrop : ImageAlpha::kBlend;
        status = preprocess_into(input, r.plan, config, r.max_side, static_cast<uint8_t*>(to));
    } catch (const std::bad_alloc&) {
        status = Status(StatusCode::kResourceExhausted, "no memory for a picture");
    }
    munmap(from, input_bytes);
    munmap(to, output_bytes);
    return status;
}

/// The zygote: one byte on its socket, with the other end of a worker's socket, asks for a worker.
[[noreturn]] void run_zygote(const VisionConfig& config) {
    signal(SIGCHLD, SIG_IGN);  // workers are reaped by the kernel
    for (;;) {
        char byte = 0;
        int fd = -1;
        if (!receive_message(kServiceSocket, &byte, 1, &fd, 1) || fd < 0) _exit(0);
        const pid_t pid = fork();
        if (pid == 0) {
            dup2(fd, kServiceSocket);
            close_range(kServiceSocket + 1, ~0U, 0);
            run_picture_worker(kServiceSocket, config);
        }
        close(fd);
        if (!send_message(kServiceSocket, &pid, sizeof pid, nullptr, 0)) _exit(0);
    }
}

// ---- the engine's side

class ThreadWorker final : public PictureWorker {
  public:
    explicit ThreadWorker(const VisionConfig& config) : config_(config) {}
    Status run(const PictureJob& job) override {
        const int64_t p = config_.patch_size;
        try {
            job.patches->resize(static_cast<size_t>(job.plan.num_patches() * 3 * p * p));
            return preprocess_into(
                *job.input, job.plan, config_, job.max_side, job.patches->data());
        } catch (const std::bad_alloc&) {
            return Status(StatusCode::kResourceExhausted, "no memory for a picture");
        }
    }
    bool dead() const override { return false; }
    pid_t pid() const override { return 0; }

  private:
    VisionConfig config_;
};

class ProcessWorker final : public PictureWorker {
  public:
    ProcessWorker(WorkerZygote::Child child, const VisionConfig& config, int64_t timeout_ms)
        : socket_(child.socket), pid_(child.pid), config_(config), timeout_ms_(timeout_ms) {}
    ~ProcessWorker() override {
        if (!dead_) kill(pid_, SIGKILL);
    }

    Status run(const PictureJob& job) override {
        const ImageInput& input = *job.input;
        const bool decoded = input.encoded.empty();
        PictureRequest r;
        r.plan = job.plan;
        r.input_bytes = static_cast<int64_t>(decoded ? input.rgb.size() : input.encoded.size());
        const int64_t p = config_.patch_size;
        r.output_bytes = job.plan.num_patches() * 3 * p * p;
        r.width = decoded ? input.width : 0;
        r.height = decoded ? input.height : 0;
        r.max_side = job.max_side;
        r.low_detail = input.detail == ImageDetail::kLow;
        r.drop_alpha = input.alpha == ImageAlpha::kDrop;
        Result<Fd> in = memory_file(static_cast<size_t>(r.input_bytes));
        if (!in.ok()) return in.status();
        Result<Fd> out = memory_file(static_cast<size_t>(r.output_bytes));
        if (!out.ok()) return out.status();
        const void* bytes = decoded ? static_cast<const void*>(input.rgb.data())
                                    : static_cast<const void*>(input.encoded.data());
        if (!write_all(in->get(), bytes, static_cast<size_t>(r.input_bytes)))
            return failed("a picture's bytes");
        if (fcntl(in->get(), F_ADD_SEALS, F_SEAL_WRITE) != 0)
            return failed("sealing a picture's bytes");
        const int fds[2] = {in->get(), out->get()};
        if (!send_message(socket_.get(), &r, sizeof r, fds, 2)) return died("is gone");
        pollfd wait{socket_.get(), POLLIN, 0};
        int ready = 0;
        do {
            ready = poll(&wait, 1, static_cast<int>(timeout_ms_));
        } while (ready < 0 && errno == EINTR);
        if (ready == 0) {
            return died("took longer than " + std::to_string(timeout_ms_) + " ms");
        }
        PictureReply reply;
        if (!receive_message(socket_.get(), &reply, sizeof reply, nullptr, 0))
            return died("died on this picture");
        if (reply.code != 0) {
            reply.text[sizeof reply.text - 1] = '\0';
            // A worker that was taken over may answer anything: only what the picture can cause
            // passes.
            const bool limit = reply.code == static_cast<int32_t>(StatusCode::kOutOfRange);
            const bool memory = reply.code == static_cast<int32_t>(StatusCode::kResourceExhausted);
            return Status(limit    ? StatusCode::kOutOfRange
                          : memory ? StatusCode::kResourceExhausted
                                   : StatusCode::kInvalidArgument,
                          reply.text);
        }
        // Copied out: the worker still maps this memory.
        job.patches->resize(static_cast<size_t>(r.output_bytes));
        if (!read_all(out->get(), job.patches->data(), job.patches->size()))
            return failed("a picture's patches");
        return {};
    }
    /// Between two jobs a worker has nothing to say: a socket that has, or that hung up, is lost.
    bool dead() const override {
        pollfd idle{socket_.get(), POLLIN, 0};
        if (!dead_ && poll(&idle, 1, 0) > 0) {
            if ((idle.revents & POLLHUP) == 0) kill(pid_, SIGKILL);
            dead_ = true;
        }
        return dead_;
    }
    pid_t pid() const override { return pid_; }

  private:
    Status died(const std::string& how) {
        if (!dead_) kill(pid_, SIGKILL);
        dead_ = true;
        return Status(StatusCode::kInternal, "the picture worker " + how);
    }

    Fd socket_;
    pid_t pid_;
    VisionConfig config_;
    int64_t timeout_ms_;
    mutable bool dead_ = false;
};

}  // namespace

void yield_to_the_engine() {
    // Linux keeps a niceness for each thread; 0 is the calling one. Failing costs speed alone.
    (void)setpriority(PRIO_PROCESS, 0, kWorkerNiceness);
}

void run_picture_worker(int socket, const VisionConfig& config) {
    yield_to_the_engine();
    if (!enter_picture_sandbox().ok()) _exit(3);
    for (;;) {
        PictureRequest r;
        int fds[2];
        if (!receive_message(socket, &r, sizeof r, fds, 2)) _exit(0);
        PictureReply reply;
        const Status status = serve(r, fds[0], fds[1], config);
        close(fds[0]);
        close(fds[1]);
        if (!status.ok()) {
            reply.code = static_cast<int32_t>(status.code());
            const std::string& text = status.message();
            std::memcpy(reply.text, text.data(), std::min(text.size(), sizeof reply.text - 1));
        }
        if (!send_message(socket, &reply, sizeof reply, nullptr, 0)) _exit(0);
    }
}

Result<std::unique_ptr<WorkerZygote>> WorkerZygote::start(const VisionConfig& config) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return failed("a socket for picture workers");
    const pid_t pid = fork();
    if (pid < 0) {
        const Status status = failed("starting picture workers");
        close(pair[0]);
        close(pair[1]);
        return status;
    }
    if (pid == 0) {
        // Nothing of the engine's stays open: no sockets of clients, no files.
        dup2(pair[1], kServiceSocket);
        close_range(kServiceSocket + 1, ~0U, 0);
        for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE})
            signal(signal_number, SIG_IGN);  // the engine decides when it ends
        prctl(PR_SET_NAME, "pictures", 0, 0, 0);
        run_zygote(config);
    }
    close(pair[1]);
    return std::unique_ptr<WorkerZygote>(new WorkerZygote(pair[0], pid));
}

WorkerZygote::~WorkerZygote() {
    close(socket_);
    kill(pid_, SIGKILL);  // another engine of this process may hold a copy of the socket
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
}

Result<WorkerZygote::Child> WorkerZygote::spawn() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return failed("a socket for a picture worker");
    Fd mine(pair[0]);
    const Fd theirs(pair[1]);
    const char byte = 1;
    const std::lock_guard<std::mutex> lock(mutex_);
    pid_t pid = -1;
    const int fd = theirs.get();
    if (!send_message(socket_, &byte, 1, &fd, 1) ||
        !receive_message(socket_, &pid, sizeof pid, nullptr, 0) || pid <= 0) {
        return Status(StatusCode::kInternal, "no picture worker could be started");
    }
    return Child{mine.release(), pid};
}

std::unique_ptr<PictureWorker> make_thread_worker(const VisionConfig& config) {
    return std::make_unique<ThreadWorker>(config);
}

Result<std::unique_ptr<PictureWorker>> make_process_worker(WorkerZygote& zygote,
                                                           const VisionConfig& config,
                                                           int64_t timeout_ms) {
    const Result<WorkerZygote::Child> child = zygote.spawn();
    if (!child.ok()) return child.status();
    return std::unique_ptr<PictureWorker>(new ProcessWorker(child.value(), config, timeout_ms));
}

}  // namespace deepinfer
