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

enum class Phase { kLoading, kReady, kDraining, kDead };
const char* phase_name(Phase phase);

struct ServerState {
    ServerState(ServerConfig c, std::unique_ptr<Log> l)
        : config(std::move(c)), log(std::move(l)), store(config.limits) {}

    const ServerConfig config;
    const std::unique_ptr<Log> log;
    Metrics metrics;
    KeyUsage key_usage;
    LiveRequests live;
    ResponseStore store;
    std::atomic<Phase> phase{Phase::kLoading};
    std::atomic<int64_t> body_bytes_held{0};  ///< bodies that are read and not yet answered
    std::atomic<bool> undrain_allowed{true};  ///< false once the process is on its way out
    int64_t started_s = 0;                    ///< seconds since 1970

    /// Null while loading. Stays alive until the server ends.
    InferenceBackend* backend() const { return backend_.load(std::memory_order_acquire); }
    void set_backend(InferenceBackend* backend) {
        backend_.store(backend, std::memory_order_release);
    }

    /// Null without keys.
    std::shared_ptr<const KeyRing> keys() const;
    void set_keys(std::shared_ptr<const KeyRing> keys);

    WorkPool* fetchers = nullptr;  ///< threads that fetch pictures; null: no URLs are taken

    // Doors to the server around this state, for admin routes.
    std::function<Status()> reload;
    std::function<double()> cpu_seconds;

  private:
    std::atomic<InferenceBackend*> backend_{nullptr};
    mutable std::mutex mutex_;
    std::shared_ptr<const KeyRing> keys_;
};

/// Random letters and digits from the operating system.
std::string random_id(const char* prefix, size_t length = 24);
int64_t unix_seconds();

}  // namespace deepinfer::server
