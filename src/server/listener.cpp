#include "server/listener.h"

#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstring>

#include "server/connection.h"

namespace deepinfer::server {
namespace {

using boost::system::error_code;

constexpr size_t kMaxWaitingWork = 1024;
constexpr int kSendBufferBytes = 64 << 10;

Status invalid(const std::string& what) {
    return {StatusCode::kInvalidArgument, what};
}

std::string last_ssl_error() {
    char text[256] = "";
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    ERR_clear_error();
    return text;
}

/// Null without a certificate.
Result<std::shared_ptr<asio::ssl::context>> load_tls(const ServerConfig& config) {
    std::shared_ptr<asio::ssl::context> out;
    if (config.tls_cert.empty()) return out;
    out = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    SSL_CTX* ctx = out->native_handle();
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(
        ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, config.tls_cert.c_str()) != 1)
        return invalid("--tls-cert " + config.tls_cert + ": " + last_ssl_error());
    if (SSL_CTX_use_PrivateKey_file(ctx, config.tls_key.c_str(), SSL_FILETYPE_PEM) != 1)
        return invalid("--tls-key " + config.tls_key + ": " + last_ssl_error());
    if (SSL_CTX_check_private_key(ctx) != 1)
        return invalid("--tls-key " + config.tls_key + " does not belong to --tls-cert " +
                       config.tls_cert);
    if (!config.tls_client_ca.empty()) {
        if (SSL_CTX_load_verify_file(ctx, config.tls_client_ca.c_str()) != 1)
            return invalid("--tls-client-ca " + config.tls_client_ca + ": " + last_ssl_error());
        STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(config.tls_client_ca.c_str());
        if (names != nullptr) SSL_CTX_set_client_CA_list(ctx, names);
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    return out;
}

/// A refused connection gets one line, as far as it goes without waiting.
void refuse_connection(tcp::socket socket, bool tls) {
    error_code ignored;
    if (!tls) {
        constexpr std::string_view kBody =
            "{\"error\": {\"message\": \"too many connections\", \"type\": \"overloaded_error\", "
            "\"param\": null, \"code\": null}}";
        HttpReply reply;
        reply.status = 503;
        reply.fields = {{"retry-after", "1"}};
        const std::string out =
            format_head(reply, 11, false, static_cast<int64_t>(kBody.size())) + std::string(kBody);
        socket.non_blocking(true, ignored);
        socket.write_some(asio::buffer(out), ignored);
        socket.shutdown(tcp::socket::shutdown_send, ignored);
    }
    socket.close(ignored);
}

}  // namespace

struct Listener::Impl {
    Impl(ServerState& s, int cpu_threads)
        : state(s),
          pool(cpu_threads, kMaxWaitingWork),
          long_pool(std::max(1, cpu_threads / 2), kMaxWaitingWork),
          shared{s, pool, long_pool, {}, {}, {}, 0, 0} {}

    ServerState& state;
    WorkPool pool, long_pool;
    ListenerShared shared;
    std::vector<std::unique_ptr<IoThread>> threads;
    std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards;
    std::unique_ptr<tcp::acceptor> public_acceptor, admin_acceptor;
    std::unique_ptr<asio::signal_set> signals;
    std::unique_ptr<asio::steady_timer> second;
    std::mutex tls_mutex;
    std::shared_ptr<asio::ssl::context> tls;
    size_t next_thread = 0;
    int public_port = 0, bound_admin_port = 0;

    Status bind(const std::string& host,
                int port,
                const std::string& option,
                std::unique_ptr<tcp::acceptor>* out);
    asio::awaitable<void> accept(tcp::acceptor& acceptor, Plane plane);
    asio::awaitable<void> tick(std::function<void()> check);
    asio::awaitable<void> wait_signal(std::function<void(int)> on_signal);
    bool take_place(Plane plane, const std::string& peer);
    void start_connection(IoThread& io, tcp::socket socket, Plane plane, const std::string& peer);
};

Status Listener::Impl::bind(const std::string& host,
                            int port,
                            const std::string& option,
                            std::unique_ptr<tcp::acceptor>* out) {
    error_code ec;
    const std::string name = host == "localhost" ? "127.0.0.1" : host;
    const asio::ip::address address = asio::ip::make_address(name, ec);
    if (ec) return invalid("--" + option + " '" + host + "' is no numeric address");
    const std::string where = host + ":" + std::to_string(port);
    auto acceptor = std::make_unique<tcp::acceptor>(threads[0]->context);
    const tcp::endpoint endpoint(address, static_cast<unsigned short>(port));
    acceptor->open(endpoint.protocol(), ec);
    if (!ec) acceptor->set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor->bind(endpoint, ec);
    if (!ec) acceptor->listen(1024, ec);
    if (ec) return {StatusCode::kUnavailable, "cannot listen on " + where + ": " + ec.message()};
    *out = std::move(acceptor);
    return {};
}

/// Neither listener is crowded out by the other one. The connection gives its place back.
bool Listener::Impl::take_place(Plane plane, const std::string& peer) {
    const ServerLimits& limits = state.config.limits;
    const std::lock_guard<std::mutex> lock(shared.mutex);
    if (plane == kPlaneAdmin) {
        if (shared.num_admin >= limits.admin_connections) return false;
        ++shared.num_admin;
        return true;
    }
    if (shared.num_public >= limits.connections) return false;
    int64_t& mine = shared.per_address[peer];
    if (mine >= limits.connections_per_ip) return false;
    ++mine;
    ++shared.num_public;
    return true;
}

void Listener::Impl::start_connection(IoThread& io,
                                      tcp::socket socket,
                                      Plane plane,
                                      const std::string& peer) {
    std::shared_ptr<asio::ssl::context> context;
    if (plane == kPlanePublic) {
        const std::lock_guard<std::mutex> lock(tls_mutex);
        context = tls;
    }
    auto connection = std::make_shared<Connection>(
        io, shared, std::move(socket), std::move(context), plane, peer);
    asio::co_spawn(
        io.context, [connection] { return connection->run(); }, asio::detached);
}

asio::awaitable<void> Listener::Impl::accept(tcp::acceptor& acceptor, Plane plane) {
    for (;;) {
        IoThread& io = *threads[plane == kPlanePublic ? next_thread++ % threads.size() : 0];
        error_code ec;
        tcp::socket socket = co_await acceptor.async_accept(
            io.context, asio::redirect_error(asio::use_awaitable, ec));
        if (ec == asio::error::operation_aborted || !acceptor.is_open()) co_return;
        if (ec) {
            // Out of descriptors, or the peer left in between: others go on.
            state.log->write(LogLevel::kWarning, "accept", LogFields().text("what", ec.message()));
            asio::steady_timer pause(threads[0]->context, Milliseconds(100));
            co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
            continue;
        }
        const tcp::endpoint remote = socket.remote_endpoint(ec);
        const std::string peer = ec ? "?" : remote.address().to_string();
        if (!take_place(plane, peer)) {
            ++state.metrics.connections_refused;
            const bool encrypted = plane == kPlanePublic && !state.config.tls_cert.empty();
            refuse_connection(std::move(socket), encrypted);
            continue;
        }
        socket.set_option(tcp::no_delay(true), ec);
        socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ec);
        socket.set_option(asio::socket_base::keep_alive(true), ec);
        auto moved = std::make_shared<tcp::socket>(std::move(socket));
        asio::post(io.context, [this, &io, moved, plane, peer] {
            start_connection(io, std::move(*moved), plane, peer);
        });
    }
}

asio::awaitable<void> Listener::Impl::tick(std::function<void()> check) {
    for (;;) {
        error_code ec;
        second->expires_after(Milliseconds(1000));
        co_await second->async_wait(asio::redirect_error(asio::use_awaitable, ec));
        check();
    }
}

asio::awaitable<void> Listener::Impl::wait_signal(std::function<void(int)> on_signal) {
    for (;;) {
        error_code ec;
        const int number =
            co_await signals->async_wait(asio::redirect_error(asio::use_awaitable, ec));
        if (ec) co_return;
        on_signal(number);
    }
}

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Listener>> Listener::start(ServerState& state) {
    const ServerConfig& c = state.config;
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const int io_threads = c.io_threads > 0 ? c.io_threads : std::clamp(cores / 4, 1, 4);
    const int cpu_threads = c.cpu_threads > 0 ? c.cpu_threads : std::max(1, cores / 2);
    auto impl = std::make_unique<Impl>(state, cpu_threads);
    Result<std::shared_ptr<asio::ssl::context>> tls = load_tls(c);
    if (!tls.ok()) return tls.status();
    impl->tls = std::move(tls).value();
    for (int i = 0; i < io_threads; ++i) {
        impl->threads.push_back(std::make_unique<IoThread>());
        impl->guards.push_back(asio::make_work_guard(impl->threads.back()->context));
    }
    DI_RETURN_IF_ERROR(impl->bind(c.host, c.port, "host", &impl->public_acceptor));
    impl->public_port = impl->public_acceptor->local_endpoint().port();
    const int admin_port = c.admin_port >= 0 ? c.admin_port : c.port == 0 ? 0 : c.port + 1;
    DI_RETURN_IF_ERROR(impl->bind(c.admin_host, admin_port, "admin-host", &impl->admin_acceptor));
    impl->bound_admin_port = impl->admin_acceptor->local_endpoint().port();

    Impl* raw = impl.get();
    asio::io_context& first = impl->threads[0]->context;
    asio::co_spawn(first, raw->accept(*raw->public_acceptor, kPlanePublic), asio::detached);
    asio::co_spawn(first, raw->accept(*raw->admin_acceptor, kPlaneAdmin), asio::detached);
    for (const auto& io : impl->threads) {
        asio::co_spawn(io->context, io->sweep(), asio::detached);
        IoThread* thread = io.get();
        ServerState* s = &state;
        io->thread = std::thread([thread, s] {
            for (;;) {
                try {
                    thread->context.run();
                    return;
                } catch (const std::exception& e) {
                    // One connection's coroutine threw: it is gone, the others go on.
                    s->log->write(
                        LogLevel::kError, "io_exception", LogFields().text("what", e.what()));
                }
            }
        });
    }
    return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

Listener::~Listener() {
    for (const auto& io : impl_->threads) io->context.stop();
    for (const auto& io : impl_->threads)
        if (io->thread.joinable()) io->thread.join();
    impl_->signals.reset();
    impl_->second.reset();
    impl_->public_acceptor.reset();
    impl_->admin_acceptor.reset();
    impl_->guards.clear();
    // Connections (owned by their coroutines) go with the contexts, while state and pool live.
    impl_->threads.clear();
}

int Listener::port() const {
    return impl_->public_port;
}
int Listener::admin_port() const {
    return impl_->bound_admin_port;
}
bool Listener::tls() const {
    const std::lock_guard<std::mutex> lock(impl_->tls_mutex);
    return impl_->tls != nullptr;
}

void Listener::stop_accepting() {
    impl_->shared.closing = true;
    Impl* raw = impl_.get();
    asio::post(impl_->threads[0]->context, [raw] {
        error_code ignored;
        raw->public_acceptor->close(ignored);
    });
}

void Listener::shut_down_requests() {
    for (const auto& io : impl_->threads) {
        IoThread* thread = io.get();
        asio::post(thread->context, [thread] {
            for (Connection* connection : thread->connections()) connection->shut_down();
        });
    }
}

Status Listener::reload_tls() {
    Result<std::shared_ptr<asio::ssl::context>> tls = load_tls(impl_->state.config);
    if (!tls.ok()) return tls.status();
    const std::lock_guard<std::mutex> lock(impl_->tls_mutex);
    impl_->tls = std::move(tls).value();
    return {};
}

double Listener::cpu_seconds() const {
    double sum = impl_->pool.cpu_seconds() + impl_->long_pool.cpu_seconds();
    for (const auto& io : impl_->threads) sum += thread_cpu_seconds(io->thread);
    return sum;
}

void Listener::watch_signals(std::function<void(int)> on_signal) {
    Impl* raw = impl_.get();
    impl_->signals =
        std::make_unique<asio::signal_set>(impl_->threads[0]->context, SIGTERM, SIGINT, SIGHUP);
    asio::co_spawn(
        impl_->threads[0]->context, raw->wait_signal(std::move(on_signal)), asio::detached);
}

void Listener::every_second(std::function<void()> check) {
    impl_->second = std::make_unique<asio::steady_timer>(impl_->threads[0]->context);
    asio::co_spawn(impl_->threads[0]->context, impl_->tick(std::move(check)), asio::detached);
}

}  // namespace deepinfer::server
