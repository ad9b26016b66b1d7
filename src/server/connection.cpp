#include "server/connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include "server/admission.h"
#include "server/api.h"
#include "server/transport.h"

namespace deepinfer::server {

namespace {

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxAhead = 64 << 10;
constexpr int kClientClosed = 499;  // nginx's status for the log
/// A stream's head waits this long for the first bytes: one packet and one system call less.
constexpr Milliseconds kHeadWait{20};
/// From this size on a body's work takes milliseconds: it waits in a line of its own.
constexpr size_t kLongBodyBytes = 64 << 10;

/// handle(), unless nobody waits for it any more or its turn came too late.
Answer handle_in_time(ServerState& state, Exchange& exchange) {
    const ErrorShape shape = exchange.route->errors;
    if (*exchange.abandoned)
        return error_answer(shape, api_error(503, "overloaded_error", "the client has gone"));
    const int64_t limit_ms = state.config.limits.queue_timeout_ms;
    if (ms_between(exchange.arrived, std::chrono::steady_clock::now()) >
        static_cast<double>(limit_ms + state.config.limits.body_timeout_ms))
        return error_answer(shape,
                            api_error(503,
                                      "overloaded_error",
                                      "the request waited longer than " + std::to_string(limit_ms) +
                                          " ms to be read",
                                      "timeout"));
    return handle(state, exchange);
}

}  // namespace

// ------------------------------------------------------------------ I/O thread

void IoThread::wake(const std::shared_ptr<WakeTarget>& target) {
    const std::lock_guard<std::mutex> alive(target->mutex);
    if (target->connection == nullptr) return;
    IoThread* io = target->io;
    {
        const std::lock_guard<std::mutex> lock(io->mutex_);
        io->woken_.push_back(target);
        if (io->posted_) return;
        io->posted_ = true;
    }
    asio::post(io->context, [io] { io->signal_woken(); });
}

void IoThread::signal_woken() {
    std::vector<std::shared_ptr<WakeTarget>> woken;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        woken.swap(woken_);
        posted_ = false;
    }
    for (const auto& target : woken) {
        const std::lock_guard<std::mutex> alive(target->mutex);
        if (target->connection != nullptr) target->connection->signal();
    }
}

asio::awaitable<void> IoThread::sweep() {
    for (;;) {
        error_code ec;
        sweep_timer_.expires_after(Milliseconds(250));
        co_await sweep_timer_.async_wait(result_in(ec));
        const SteadyTime now = std::chrono::steady_clock::now();
        // A connection that ends removes itself later, from its own coroutine.
        for (Connection* connection : connections_) connection->check_deadline(now);
    }
}

// ------------------------------------------------------------------ life

Connection::Connection(IoThread& io,
                       ListenerShared& shared,
                       tcp::socket socket,
                       std::shared_ptr<asio::ssl::context> tls,
                       Plane plane,
                       std::string peer)
    : io_(io),
      shared_(shared),
      state_(shared.state),
      plane_(plane),
      peer_(std::move(peer)),
      reader_(shared.state.config.limits),
      event_(io.context),
      room_(io.context),
      is_tls_(tls != nullptr) {
    if (tls) {
        transport_ = std::make_unique<TlsTransport>(std::move(socket), std::move(tls));
    } else {
        transport_ = std::make_unique<PlainTransport>(std::move(socket));
    }
    wake_target_->connection = this;
    wake_target_->io = &io_;
    ++state_.metrics.connections_open;
    ++state_.metrics.connections_total;
}

Connection::~Connection() {
    {
        const std::lock_guard<std::mutex> gone(wake_target_->mutex);
        wake_target_->connection = nullptr;
    }
    state_.bodies.give_back(body_held_);
    --state_.metrics.connections_open;
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    if (plane_ == kPlaneAdmin) {
        --shared_.num_admin;
        return;
    }
    --shared_.num_public;
    const auto found = shared_.per_address.find(peer_);
    if (found != shared_.per_address.end() && --found->second == 0)
        shared_.per_address.erase(found);
}

void Connection::signal() {
    event_.cancel();
}

void Connection::check_deadline(SteadyTime now) {
    if (!open_) return;
    if (shared_.closing && !busy_ && reader_.idle() && plane_ == kPlanePublic) return close();
    if (now < deadline_) return;
    no_deadline();
    expired_ = true;
    error_code ignored;
    transport_->socket().cancel(ignored);
    signal();
}

void Connection::shut_down() {
    if (task_ == nullptr) return;
    task_->cancel(CancelReason::kShutdown);
    signal();
}

void Connection::close() {
    if (!open_) return;
    open_ = false;
    error_code ignored;
    transport_->socket().close(ignored);
    ended_ = Ended::kGone;
    signal();
    room_.cancel();
}

asio::awaitable<void> Connection::wait_event(SteadyTime until) {
    error_code ignored;
    event_.expires_at(until);
    co_await event_.async_wait(result_in(ignored));
}

asio::awaitable<void> Connection::run() {
    const auto self = shared_from_this();
    io_.add(this);
    error_code ec;
    set_deadline(state_.config.limits.header_timeout_ms);
    co_await transport_->handshake(ec);
    if (!ec) {
        asio::co_spawn(
            io_.context, [self] { return self->read_loop(); }, asio::detached);
        // One co_await a statement: g++ 12 evaluates both sides of `co_await a && co_await b`.
        while (open_) {
            const bool has_head = co_await wait_head();
            if (!has_head) break;
            const bool goes_on = co_await serve_one();
            if (!goes_on) break;
        }
    }
    close();
    io_.remove(this);
}

asio::awaitable<void> Connection::read_loop() {
    const auto self = shared_from_this();
    std::vector<char> buffer(kReadBytes);
    while (open_) {
        if (busy_ && !discard_ && ahead_.size() > kMaxAhead) {
            error_code ignored;
            room_.expires_at(SteadyTime::max());
            co_await room_.async_wait(result_in(ignored));
            continue;
        }
        error_code ec;
        const size_t n = co_await transport_->read_some(asio::buffer(buffer), ec);
        if (ec || n == 0) {
            if (!open_ || expired_) co_return;
            const bool half = ec == asio::error::eof && !is_tls_;
            ended_ = half ? Ended::kHalfClosed : Ended::kGone;
            signal();
            if (!half) co_return;
            // The peer sends no more, but may still read. If it does not, our next bytes come back
            // as a reset.
            ec = {};
            co_await transport_->socket().async_wait(tcp::socket::wait_error, result_in(ec));
            if (open_ && !ec) {
                ended_ = Ended::kGone;
                signal();
            }
            co_return;
        }
        state_.metrics.bytes_received += static_cast<int64_t>(n);
        if (discard_) continue;
        if (busy_) {
            ahead_.append(buffer.data(), n);
        } else {
            reader_.feed({buffer.data(), n});
            signal();
        }
    }
}

asio::awaitable<bool> Connection::write(std::string_view bytes) {
    const ServerLimits& limits = state_.config.limits;
    while (!bytes.empty()) {
        if (!open_ || expired_) co_return false;
        size_t n = transport_->write_at_once(asio::buffer(bytes.data(), bytes.size()));
        if (n > 0) {
            wrote(n);
            bytes.remove_prefix(n);
            continue;
        }
        write_waited_ = true;
        error_code ec;
        const SteadyTime begun = std::chrono::steady_clock::now();
        // Every byte taken would begin a new send_timeout_ms: a reader that takes one now and then
        // ends by the rate of all the time that it held us up.
        double left_ms = static_cast<double>(limits.send_timeout_ms);
        if (limits.send_min_bytes_per_s > 0)
            left_ms = std::min(left_ms,
                               left_ms - ms_held_up_ +
                                   static_cast<double>(bytes_held_up_) * 1000 /
                                       static_cast<double>(limits.send_min_bytes_per_s));
        set_deadline(std::max<int64_t>(0, static_cast<int64_t>(left_ms)));
        n = co_await transport_->write_some(asio::buffer(bytes.data(), bytes.size()), ec);
        no_deadline();
        ms_held_up_ += ms_between(begun, std::chrono::steady_clock::now());
        bytes_held_up_ += static_cast<int64_t>(n);
        if (ec) {
            if (!expired_) ended_ = Ended::kGone;
            co_return false;
        }
        wrote(n);
        bytes.remove_prefix(n);
    }
    co_return true;
}

void Connection::wrote(size_t bytes) {
    state_.metrics.bytes_sent += static_cast<int64_t>(bytes);
    bytes_out_ += static_cast<int64_t>(bytes);
}

// ------------------------------------------------------------------ one request

asio::awaitable<bool> Connection::wait_head() {
    const ServerLimits& limits = state_.config.limits;
    bool begun = !reader_.idle();
    set_deadline(begun ? limits.header_timeout_ms : limits.idle_timeout_ms);
    while (reader_.state() == RequestReader::State::kHead) {
        if (!begun && !reader_.idle()) {
            begun = true;
            set_deadline(limits.header_timeout_ms);
        }
        if (expired_) {
            if (!begun) co_return false;
            expired_ = false;  // the answer may still be written
            Exchange exchange;
            exchange.id = random_id("req_");
            HttpReply reply =
                error_answer(ErrorShape::kOpenAi,
                             api_error(408,
                                       "invalid_request_error",
                                       "the request's head took longer than " +
                                           std::to_string(limits.header_timeout_ms) + " ms"))
                    .reply;
            state_.metrics.count_request("none", 408);
            co_await send_reply(exchange, std::move(reply), false);
            co_return false;
        }
        if (ended_ != Ended::kNo || !open_) co_return false;
        co_await wait_event(SteadyTime::max());
    }
    no_deadline();
    co_return true;
}

std::vector<std::pair<std::string, std::string>> Connection::common_fields(
    const Exchange& exchange) const {
    auto fields = cors_fields(state_.config, exchange.request);
    fields.emplace_back("x-request-id", exchange.id);
    if (error_shape(exchange.request.path) == ErrorShape::kAnthropic)
        fields.emplace_back("request-id", exchange.id);
    return fields;
}

asio::awaitable<bool> Connection::serve_one() {
    const ServerLimits& limits = state_.config.limits;
    auto exchange = std::make_shared<Exchange>();
    exchange->id = random_id("req_");
    exchange->peer = peer_;
    exchange->arrived = std::chrono::steady_clock::now();
    bytes_out_ = bytes_held_up_ = 0;
    ms_held_up_ = 0;
    ++state_.metrics.requests_open;

    std::optional<Answer> answer;
    bool counted = false;
    bool keep_alive = false;
    if (reader_.state() == RequestReader::State::kFault) {
        version_ = 11;
        body_unread_ = true;
        const HttpFault& fault = reader_.fault();
        answer = error_answer(ErrorShape::kOpenAi,
                              api_error(fault.status, "invalid_request_error", fault.message));
    } else {
        exchange->request = reader_.head();
        version_ = exchange->request.version;
        keep_alive = exchange->request.keep_alive && !shared_.closing;
        body_unread_ = reader_.state() != RequestReader::State::kReady;
        if (!body_unread_) exchange->request = reader_.take();
        if (state_.metrics.requests_open > limits.live_requests) {
            answer = error_answer(error_shape(exchange->request.path),
                                  api_error(503, "overloaded_error", "too many open requests"));
        } else {
            answer = admit(state_, plane_, *exchange, &counted);
        }
    }
    if (!answer) {
        BodyEnd end = BodyEnd::kWhole;
        if (body_unread_) {
            const int64_t route_limit = exchange->route->body_bytes;
            constexpr int64_t kIgnoredBody = 64 << 10;  // of a route that takes none
            reader_.limit_body(route_limit < 0    ? limits.body_bytes
                               : route_limit == 0 ? kIgnoredBody
                                                  : route_limit);
            end = co_await read_body(exchange->request.expects_continue);
        } else if (!hold_body(static_cast<int64_t>(exchange->request.body.size()))) {
            end = BodyEnd::kNoRoom;
        }
        if (end == BodyEnd::kGone) {
            finish_request(*exchange, kClientClosed, counted);
            co_return false;
        }
        if (end == BodyEnd::kWhole) {
            if (body_unread_) exchange->request = reader_.take();
            body_unread_ = false;
            busy_ = true;
            answer = quick_answer(state_, *exchange);
        } else {
            answer = body_refusal(end, *exchange);
        }
    }
    busy_ = true;
    if (!answer) answer = co_await work(exchange);

    int status = 0;
    bool sent = false;
    if (answer->task != nullptr) {
        task_ = answer->task.get();
        sent = co_await run_task(*exchange, task_, &status);
        task_ = nullptr;
        exchange->record = answer->task->record();
        answer->task.reset();
        keep_alive = keep_alive && sent && !(exchange->record.streamed && version_ == 10);
    } else {
        status = answer->reply.status;
        exchange->record.error = answer->error;
        keep_alive = keep_alive && !body_unread_;
        sent = co_await send_reply(*exchange, std::move(answer->reply), keep_alive);
        if (!sent) status = kClientClosed;
    }
    finish_request(*exchange, status, counted);
    busy_ = false;
    if (!sent || !keep_alive || shared_.closing || ended_ != Ended::kNo) {
        if (sent) co_await linger();
        co_return false;
    }
    std::string ahead;
    ahead.swap(ahead_);
    room_.cancel();
    if (!ahead.empty()) reader_.feed(ahead);
    co_return true;
}

/// Takes what this request's body has grown by from the server's budget.
bool Connection::hold_body(int64_t bytes) {
    if (!state_.bodies.take(bytes - body_held_)) return false;
    body_held_ = bytes;
    return true;
}

Answer Connection::body_refusal(BodyEnd end, const Exchange& exchange) {
    const ErrorShape shape = exchange.route->errors;
    if (end == BodyEnd::kSlow) {
        expired_ = false;  // the answer may still be written
        return error_answer(
            shape, api_error(408, "invalid_request_error", "the request body came too slowly"));
    }
    if (end == BodyEnd::kFault) {
        const HttpFault& fault = reader_.fault();
        return error_answer(shape, api_error(fault.status, "invalid_request_error", fault.message));
    }
    return error_answer(
        shape,
        api_error(503,
                  "overloaded_error",
                  "the bodies of open requests fill the server's " +
                      std::to_string(state_.bodies.limit()) + " bytes for them; try again later"));
}

asio::awaitable<Connection::BodyEnd> Connection::read_body(bool expects_continue) {
    const ServerLimits& limits = state_.config.limits;
    // Room is taken as bytes arrive: a said length that is never sent would crowd others out.
    if (reader_.said_body_bytes() > state_.bodies.limit() - state_.bodies.held())
        co_return BodyEnd::kNoRoom;
    if (expects_continue && reader_.state() == RequestReader::State::kBody &&
        reader_.body_bytes() == 0 && reader_.buffered() == 0) {
        const bool written = co_await write("HTTP/1.1 100 Continue\r\n\r\n");
        if (!written) co_return BodyEnd::kGone;
    }
    const SteadyTime begun = std::chrono::steady_clock::now();
    reader_.feed({});  // what came with the head
    constexpr double kGraceMs = 5000;
    for (;;) {
        if (reader_.state() == RequestReader::State::kFault) co_return BodyEnd::kFault;
        if (!hold_body(reader_.body_bytes())) co_return BodyEnd::kNoRoom;
        if (reader_.state() == RequestReader::State::kReady) co_return BodyEnd::kWhole;
        const double ms = ms_between(begun, std::chrono::steady_clock::now());
        const bool slow =
            ms > kGraceMs && static_cast<double>(reader_.body_bytes()) * 1000 <
                                 static_cast<double>(limits.body_min_bytes_per_s) * (ms - kGraceMs);
        if (expired_ || slow || ms > static_cast<double>(limits.body_timeout_ms))
            co_return BodyEnd::kSlow;
        if (ended_ != Ended::kNo || !open_) co_return BodyEnd::kGone;
        // Looked at again in a second at the latest, for the rate.
        co_await wait_event(std::chrono::steady_clock::now() + Milliseconds(1000));
    }
}

asio::awaitable<Answer> Connection::work(std::shared_ptr<Exchange> exchange) {
    struct Done {
        std::atomic<bool> ready{false};
        Answer answer;
    };
    const auto done = std::make_shared<Done>();
    exchange->wake = [target = wake_target_] { IoThread::wake(target); };
    ServerState& state = state_;
    const size_t body_bytes = exchange->request.body.size();
    WorkPool& pool = body_bytes > kLongBodyBytes ? shared_.long_pool : shared_.pool;
    const bool accepted = pool.submit([&state, exchange, done] {
        try {
            done->answer = handle_in_time(state, *exchange);
        } catch (const std::exception& e) {
            state.log->write(LogLevel::kError,
                             "handler_exception",
                             LogFields().text("id", exchange->id).text("what", e.what()));
            done->answer =
                error_answer(exchange->route->errors,
                             api_error(500, "internal_error", "the server met an internal error"));
        }
        exchange->request.body = std::string();  // what is needed of it has been taken
        done->ready = true;
        exchange->wake();
    });
    if (!accepted) {
        co_return error_answer(exchange->route->errors,
                               api_error(503, "overloaded_error", "too much work is waiting"));
    }
    while (!done->ready) {
        if (ended_ == Ended::kGone) *exchange->abandoned = true;
        co_await wait_event(SteadyTime::max());
    }
    co_return std::move(done->answer);
}

asio::awaitable<bool> Connection::send_reply(const Exchange& exchange,
                                             HttpReply reply,
                                             bool keep_alive) {
    for (auto& field : common_fields(exchange)) reply.fields.push_back(std::move(field));
    std::string out =
        format_head(reply, version_, keep_alive, static_cast<int64_t>(reply.body.size()));
    const bool has_body =
        exchange.request.method != "HEAD" && reply.status != 204 && reply.status != 304;
    if (has_body) out += reply.body;
    co_return co_await write(out);
}

asio::awaitable<bool> Connection::probe(bool in_stream, SteadyTime now) {
    // An old client does not stop sending unless it has gone.
    if (version_ == 10) {
        ended_ = Ended::kGone;
        co_return false;
    }
    next_probe_ = now + Milliseconds(1000);
    std::string bytes;
    if (in_stream) {
        append_chunk(":\n\n", &bytes);
    } else {
        bytes = "HTTP/1.1 102 Processing\r\n\r\n";
    }
    co_return co_await write(bytes);
}

asio::awaitable<bool> Connection::run_task(Exchange& exchange, Task* task, int* status) {
    const bool streamed = task->streamed();
    const int64_t keep_alive_ms = state_.config.limits.keep_alive_ms;
    SteadyTime last_write = std::chrono::steady_clock::now();
    next_probe_ = SteadyTime();
    *status = 200;
    std::string head;  // of a stream: goes with its first bytes if they come soon
    SteadyTime head_due = SteadyTime::max();
    bool head_sent = false;
    for (;;) {
        const SteadyTime now = std::chrono::steady_clock::now();
        if (ended_ == Ended::kHalfClosed && now >= next_probe_) {
            const bool reached = co_await probe(head_sent, now);
            if (!reached) ended_ = Ended::kGone;
        }
        if (ended_ == Ended::kGone || expired_ || !open_) {
            task->cancel(expired_ ? CancelReason::kSlowClient : CancelReason::kClientGone);
            *status = kClientClosed;
            co_return false;
        }
        write_waited_ = false;
        Task::Progress progress = task->poll(now);
        std::string out;
        if (progress.head_ready) {
            *status = progress.head.status;
            for (auto& field : common_fields(exchange))
                progress.head.fields.push_back(std::move(field));
            const bool keep = exchange.request.keep_alive && !shared_.closing;
            head = format_head(progress.head, version_, keep, -1);
            head_due = now + kHeadWait;
        }
        if (streamed) {
            if (version_ == 11) {
                append_chunk(progress.bytes, &out);
                if (progress.done) out += "0\r\n\r\n";
            } else {
                out += progress.bytes;
            }
            if (out.empty() && head_sent && keep_alive_ms > 0 &&
                now >= last_write + Milliseconds(keep_alive_ms)) {
                constexpr std::string_view kComment = ": keep-alive\n\n";
                if (version_ == 11) {
                    append_chunk(kComment, &out);
                } else {
                    out += kComment;
                }
            }
            if (!head.empty() && (!out.empty() || progress.done || now >= head_due)) {
                out.insert(0, head);
                head.clear();
                head_due = SteadyTime::max();
                head_sent = true;
            }
            if (!out.empty()) {
                last_write = now;
                const bool written = co_await write(out);
                if (!written) continue;  // the next round says why
            }
        } else if (progress.done) {
            *status = progress.head.status;
            const bool keep = exchange.request.keep_alive && !shared_.closing;
            const bool sent = co_await send_reply(exchange, std::move(progress.head), keep);
            if (!sent) {
                *status = kClientClosed;
                co_return false;
            }
        }
        if (progress.done) co_return true;
        // What came while a write waited has woken nobody. Otherwise its wake is still to come: to
        // poll again at once would let one busy stream keep this thread.
        if (write_waited_) continue;
        SteadyTime until = std::min(task->deadline(), head_due);
        if (head_sent && keep_alive_ms > 0)
            until = std::min(until, last_write + Milliseconds(keep_alive_ms));
        if (ended_ == Ended::kHalfClosed) until = std::min(until, next_probe_);
        co_await wait_event(until);
    }
}

asio::awaitable<void> Connection::linger() {
    // Bytes that nobody reads would turn our close into a reset, which could overtake the answer.
    discard_ = true;
    room_.cancel();
    ahead_.clear();
    error_code ignored;
    set_deadline(2000);
    co_await transport_->shut_down_send(ignored);
    no_deadline();
    const SteadyTime end = std::chrono::steady_clock::now() + Milliseconds(2000);
    while (open_ && ended_ == Ended::kNo && body_unread_ && std::chrono::steady_clock::now() < end)
        co_await wait_event(end);
}

void Connection::finish_request(Exchange& exchange, int status, bool counted) {
    --state_.metrics.requests_open;
    state_.bodies.give_back(body_held_);
    body_held_ = 0;
    if (counted) state_.key_usage.end(exchange.caller);
    const std::string_view route = exchange.route != nullptr ? exchange.route->name : "none";
    state_.metrics.count_request(route, status);
    if (!state_.config.access_log) return;
    const AccessRecord& r = exchange.record;
    LogFields fields;
    fields.text("id", exchange.id)
        .text("peer", peer_)
        .text("method", exchange.request.method.substr(0, 20))
        .text("route", route)
        .integer("status", status)
        .integer("bytes_out", bytes_out_)
        .number("total_ms", ms_between(exchange.arrived, std::chrono::steady_clock::now()));
    if (!exchange.caller.id.empty())
        fields.text("key", exchange.caller.id).text("tenant", exchange.caller.tenant);
    if (r.prompt_tokens >= 0) {
        fields.text("model", r.model)
            .integer("prompt_tokens", r.prompt_tokens)
            .integer("cached_tokens", r.cached_tokens)
            .integer("completion_tokens", r.completion_tokens)
            .number("queue_ms", r.queue_ms)
            .number("first_token_ms", r.first_token_ms)
            .text("finish_reason", r.finish_reason)
            .text("stream", r.streamed ? "yes" : "no");
    }
    if (!r.user_hash.empty()) fields.text("user", r.user_hash);
    if (status == 500) fields.text("error", r.error);
    state_.log->write(LogLevel::kInfo, "request", fields);
}

}  // namespace deepinfer::server
