// What a route's handler gives back: an answer, or a task that becomes one.
//
// Handlers run on the work pool and know nothing of sockets. A task is then polled by its
// connection's I/O thread whenever it has been woken, a timeout of its own is due, or the last
// write is done; so a reader that does not read is never given more than one poll's worth of bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/api_keys.h"
#include "server/http_message.h"
#include "server/routes.h"

namespace deepinfer::server {

using SteadyTime = std::chrono::steady_clock::time_point;
using Milliseconds = std::chrono::milliseconds;

inline double ms_between(SteadyTime from, SteadyTime to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
}

/// Wakes the connection that polls a task. From any thread, also after the connection has gone.
using Wake = std::function<void()>;

/// One line of the access log: what a request was and what came of it. No content.
struct AccessRecord {
    std::string model;
    std::string user_hash;  ///< of the client's `user`
    std::string finish_reason;
    std::string error;  ///< message of an error answer
    int64_t prompt_tokens = -1;
    int64_t cached_tokens = 0;
    int64_t completion_tokens = 0;
    double queue_ms = 0;
    double first_token_ms = 0;
    bool streamed = false;
};

/// A request on its way through the server.
struct Exchange {
    std::string id;  ///< "req_…", also the header x-request-id
    HttpRequest request;
    const Route* route = nullptr;
    std::string parameter;  ///< of the route's path
    ApiKey caller;          ///< without keys: id "" and every scope
    std::string peer;       ///< address
    SteadyTime arrived;
    Wake wake;
    /// Nobody waits for the answer any more: work that has not begun need not begin. Copies share
    /// it.
    std::shared_ptr<std::atomic<bool>> abandoned = std::make_shared<std::atomic<bool>>(false);
    AccessRecord record;
};

/// Why a task is given up.
enum class CancelReason { kClientGone, kSlowClient, kShutdown, kOwner };

class Task {
  public:
    virtual ~Task() = default;

    /// What has become ready since the last call.
    struct Progress {
        bool head_ready =
            false;  ///< with the first progress of a streamed answer: status and fields
        bool done = false;
        HttpReply head;  ///< of an answer that is not streamed (with `done`): everything, body too
        std::string bytes;  ///< of a streamed answer: the next part of the body
    };
    virtual Progress poll(SteadyTime now) = 0;

    /// The answer is an event stream: bytes come before the end.
    virtual bool streamed() const = 0;
    /// When poll() is to be called even if nobody wakes it.
    virtual SteadyTime deadline() const = 0;
    /// Takes the work back. kShutdown: the next poll() ends the answer with an error; otherwise
    /// nobody polls again.
    virtual void cancel(CancelReason reason) = 0;
    /// Final; after done or cancel().
    virtual const AccessRecord& record() const = 0;
};

/// The last progress of a task that ends with a reply instead of what it was to become. Of a
/// stream: before its head is out.
inline Task::Progress whole_answer(HttpReply reply, bool streamed) {
    Task::Progress out;
    out.done = true;
    out.head_ready = streamed;
    out.head = std::move(reply);
    if (streamed) out.bytes.swap(out.head.body);
    return out;
}

struct Answer {
    HttpReply reply;
    std::unique_ptr<Task> task;  ///< set: `reply` is not used
    std::string error;           ///< for the log
};

}  // namespace deepinfer::server
