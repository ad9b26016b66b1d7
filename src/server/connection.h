// One connection: reads requests, runs their handlers, writes answers. Asio coroutines on one I/O
// thread; connection.cpp and listener.cpp alone include this header.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/http_parser.h"
#include "server/state.h"
#include "server/task.h"
#include "server/work_pool.h"

namespace deepinfer::server {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

class Connection;
class IoThread;

/// What other threads hold of a connection: a way to wake it that outlives it. While `mutex` is
/// held, a connection that is named here lives, and so does its I/O thread.
struct WakeTarget {
    std::mutex mutex;
    Connection* connection = nullptr;  ///< null once it has gone
    IoThread* io = nullptr;
};

/// One io_context and its thread. Wakes of other threads are gathered: however many tasks have
/// become ready, the thread is interrupted once.
class IoThread {
    // Before `context`, for they must outlive it: its end destroys what still waits there, and
    // those connections take themselves off, while other threads may still wake them.
    std::mutex mutex_;
    std::vector<std::shared_ptr<WakeTarget>> woken_;
    bool posted_ = false;
    std::set<Connection*> connections_;

  public:
    IoThread() : sweep_timer_(context) {}

    asio::io_context context{1};
    std::thread thread;

    /// From any thread.
    static void wake(const std::shared_ptr<WakeTarget>& target);

    // I/O thread only.
    void add(Connection* connection) { connections_.insert(connection); }
    void remove(Connection* connection) { connections_.erase(connection); }
    const std::set<Connection*>& connections() const { return connections_; }
    /// Ends connections whose time is over, four times a second.
    asio::awaitable<void> sweep();

  private:
    void signal_woken();

    asio::steady_timer sweep_timer_;
};

/// A socket, with or without TLS.
class Transport;

/// What a connection needs of its listener.
struct ListenerShared {
    ServerState& state;
    WorkPool& pool;
    WorkPool& long_pool;  ///< for large bodies, so that they hold up nobody but each other
    /// No further request is taken: connections end after the one they are at.
    std::atomic<bool> closing{false};
    std::mutex mutex;
    // Open connections: of the public listener by address and in all, and of the admin listener.
    std::map<std::string, int64_t> per_address;
    int64_t num_public = 0, num_admin = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
  public:
    /// `tls` may be null. Counts as open from here on.
    Connection(IoThread& io,
               ListenerShared& shared,
               tcp::socket socket,
               std::shared_ptr<asio::ssl::context> tls,
               Plane plane,
               std::string peer);
    ~Connection();

    /// The connection's whole life. Spawned on the I/O thread.
    asio::awaitable<void> run();

    // I/O thread only.
    void signal();
    void check_deadline(SteadyTime now);
    /// Ends what runs with an error to the client (shutdown).
    void shut_down();
    void close();
    bool idle() const { return !busy_; }

  private:
    enum class Ended { kNo, kHalfClosed, kGone };

    asio::awaitable<void> read_loop();
    asio::awaitable<void> wait_event(SteadyTime until);
    asio::awaitable<bool> write(std::string_view bytes);
    void wrote(size_t bytes);
    /// False: the connection ends.
    asio::awaitable<bool> wait_head();
    asio::awaitable<bool> serve_one();
    enum class BodyEnd { kWhole, kGone, kSlow, kFault, kNoRoom };
    asio::awaitable<BodyEnd> read_body(bool expects_continue);
    Answer body_refusal(BodyEnd end, const Exchange& exchange);
    bool hold_body(int64_t bytes);
    asio::awaitable<Answer> work(std::shared_ptr<Exchange> exchange);
    asio::awaitable<bool> send_reply(const Exchange& exchange, HttpReply reply, bool keep_alive);
    asio::awaitable<bool> run_task(Exchange& exchange, Task* task, int* status);
    asio::awaitable<bool> probe(bool in_stream, SteadyTime now);
    asio::awaitable<void> linger();
    void finish_request(Exchange& exchange, int status, bool counted);
    std::vector<std::pair<std::string, std::string>> common_fields(const Exchange& exchange) const;
    void set_deadline(int64_t ms) {
        deadline_ = std::chrono::steady_clock::now() + Milliseconds(ms);
    }
    void no_deadline() { deadline_ = SteadyTime::max(); }

    IoThread& io_;
    const std::shared_ptr<WakeTarget> wake_target_ = std::make_shared<WakeTarget>();
    ListenerShared& shared_;
    ServerState& state_;
    std::unique_ptr<Transport> transport_;
    const Plane plane_;
    const std::string peer_;
    RequestReader reader_;
    std::string ahead_;  // bytes that came while a request is being answered
    asio::steady_timer event_;
    asio::steady_timer room_;  // wakes the reading side once there is room again
    SteadyTime deadline_ = SteadyTime::max();
    SteadyTime next_probe_;
    Ended ended_ = Ended::kNo;
    Task* task_ = nullptr;  // of the request that is being answered
    int version_ = 11;      // of the request that is being answered
    bool is_tls_ = false;
    bool busy_ = false;     // a request is being answered: input is set aside
    bool discard_ = false;  // input is thrown away until the end
    bool expired_ = false;
    bool open_ = true;
    bool body_unread_ = false;
    bool write_waited_ = false;  // since it was last cleared, a write had to wait
    int64_t body_held_ = 0;      // taken from state_.bodies
    // Of the request that is being answered:
    int64_t bytes_out_ = 0;
    int64_t bytes_held_up_ = 0;  // written after the reader had to be waited for
    double ms_held_up_ = 0;      // what that waiting took
};

}  // namespace deepinfer::server
