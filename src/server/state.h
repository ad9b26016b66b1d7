// What all requests share. Everything here may be used from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "deepinfer/server.h"
#include "server/api_keys.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/response_store.h"
#include "server/task.h"
#include "server/work_pool.h"

namespace deepinfer::server {

/// The requests to the model that are open, by id. For the admin page and for DELETE.
class LiveRequests {
  public:
    struct Entry {
        std::string tenant;
        std::string key_id;
        std::string route;
        SteadyTime begun;
        int64_t prompt_tokens = 0;
        std::shared_ptr<std::atomic<int64_t>> completion_tokens;
        std::function<void()> cancel;  ///< from any thread
    };
    void add(const std::string& id, Entry entry);
    void remove(const std::string& id);
    /// False if there is none of this id and tenant.
    bool cancel(const std::string& id, const std::string& tenant);
    void cancel_all();
    std::vector<std::pair<std::string, Entry>> list() const;
    size_t size() const;

  private:
    mutable std::mutex mutex_;
    std::map<std::string, Entry> entries_;
};

/// Memory for request bodies, one for the whole server: many connections, each within its own
/// limit, must not add up to more than the machine has.
class BodyBudget {
  public:
    explicit BodyBudget(int64_t limit_bytes) : limit_(limit_bytes) {}
    /// False if that would be more than the limit; then nothing is taken.
    bool take(int64_t bytes) {
        int64_t held = held_.load(std::memory_order_relaxed);
        do {
            if (bytes > limit_ - held) return false;
        } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
        return true;
    }
    void give_back(int64_t bytes) { held_.fetch_sub(bytes, std::memory_order_relaxed); }
    int64_t held() const { return held_.load(std::memory_order_relaxed); }
    int64_t limit() const { return limit_; }

  private:
    const int64_t limit_;
    std::atomic<int64_t> held_{0};
};

/// What somebody has taken, until it goes.
class BodyShare {
  public:
    explicit BodyShare(BodyBudget& budget) : budget_(budget) {}
    ~BodyShare() { budget_.give_back(held_); }
    BodyShare(const BodyShare&) = delete;
    BodyShare& operator=(const BodyShare&) = delete;
    /// False: there is no room for so much more.
    bool take(int64_t bytes) {
        if (!budget_.take(bytes)) return false;
        held_ += bytes;
        return true;
    }

  private:
    BodyBudget& budget_;
    int64_t held_ = 0;
};

enum class Phase { kLoading, kReady, kDraining, kDead };
const char* phase_name(Phase phase);

struct ServerState {
    ServerState(ServerConfig c, std::unique_ptr<Log> l)
        : config(std::move(c)),
          log(std::move(l)),
          store(config.limits),
          bodies(config.limits.held_body_bytes) {}

    const ServerConfig config;
    const std::unique_ptr<Log> log;
    Metrics metrics;
    KeyUsage key_usage;
    LiveRequests live;
    ResponseStore store;
    std::atomic<Phase> phase{Phase::kLoading};
    BodyBudget bodies;                        ///< that are being read or not yet answered
    std::atomic<bool> undrain_allowed{true};  ///< false once the process is on its way out
    int64_t started_s = 0;                    ///< seconds since 1970

    /// Null while loading. Stays alive until the server ends.
    InferenceBackend* backend() const { return backend_.load(std::memory_order_acquire); }
    void set_backend(InferenceBackend* backend) {
        longest_token_bytes_ = backend->tokenizer().longest_token_bytes();
        backend_.store(backend, std::memory_order_release);
    }
    /// Of the backend's vocabulary: a text has at least its bytes divided by this tokens.
    size_t longest_token_bytes() const { return longest_token_bytes_; }

    /// Null without keys.
    std::shared_ptr<const KeyRing> keys() const;
    void set_keys(std::shared_ptr<const KeyRing> keys);

    WorkPool* fetchers = nullptr;   ///< threads that fetch pictures; null: no URLs are taken
    WorkPool* compilers = nullptr;  ///< threads for constraints that are not compiled yet

    // Doors to the server around this state, for admin routes.
    std::function<Status()> reload;
    std::function<double()> cpu_seconds;

  private:
    std::atomic<InferenceBackend*> backend_{nullptr};
    size_t longest_token_bytes_ = 1;  // written once, before backend_
    mutable std::mutex mutex_;
    std::shared_ptr<const KeyRing> keys_;
};

/// Random letters and digits from the operating system.
std::string random_id(const char* prefix, size_t length = 24);
int64_t unix_seconds();

}  // namespace deepinfer::server
