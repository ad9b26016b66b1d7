// The sockets of a server: two listeners, their I/O threads, signals and the watchdog.
#pragma once

#include <functional>
#include <memory>

#include "server/state.h"

namespace deepinfer::server {

/// Asio stays behind this. Functions may be called from any thread unless said otherwise.
class Listener {
  public:
    /// Binds both listeners and starts to answer. `state` outlives it.
    static Result<std::unique_ptr<Listener>> start(ServerState& state);
    /// Stops at once.
    ~Listener();

    int port() const;
    int admin_port() const;
    bool tls() const;

    /// No new connection on the public listener; connections end when they are idle.
    void stop_accepting();
    /// Ends the open requests to the model with an error to their clients.
    void shut_down_requests();
    Status reload_tls();
    double cpu_seconds() const;

    /// The number of a signal is handed to `on_signal` on an I/O thread.
    void watch_signals(std::function<void(int)> on_signal);
    /// `check` runs about once a second on an I/O thread.
    void every_second(std::function<void()> check);

  private:
    struct Impl;
    explicit Listener(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::server
