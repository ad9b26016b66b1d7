// A connection's socket, with or without TLS. Only connection.cpp includes this (Boost's headers).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>

namespace deepinfer::server {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

/// For co_await: the result is the value, the error lands in `ec`.
inline auto result_in(error_code& ec) {
    return asio::redirect_error(asio::use_awaitable, ec);
}

/// I/O thread only.
class Transport {
  public:
    virtual ~Transport() = default;
    virtual tcp::socket& socket() = 0;
    virtual asio::awaitable<void> handshake(error_code& ec) = 0;
    virtual asio::awaitable<size_t> read_some(asio::mutable_buffer to, error_code& ec) = 0;
    /// What can be written without waiting; 0: wait with write_some(), which also says why.
    virtual size_t write_at_once(asio::const_buffer from) = 0;
    virtual asio::awaitable<size_t> write_some(asio::const_buffer from, error_code& ec) = 0;
    /// Says that nothing more is sent.
    virtual asio::awaitable<void> shut_down_send(error_code& ec) = 0;
};

class PlainTransport final : public Transport {
  public:
    explicit PlainTransport(tcp::socket socket) : socket_(std::move(socket)) {
        error_code ignored;
        socket_.non_blocking(true, ignored);
    }
    tcp::socket& socket() override { return socket_; }
    asio::awaitable<void> handshake(error_code&) override { co_return; }
    asio::awaitable<size_t> read_some(asio::mutable_buffer to, error_code& ec) override {
        return socket_.async_read_some(to, result_in(ec));
    }
    size_t write_at_once(asio::const_buffer from) override {
        error_code ec;
        const size_t n = socket_.write_some(from, ec);
        return ec ? 0 : n;
    }
    asio::awaitable<size_t> write_some(asio::const_buffer from, error_code& ec) override {
        return socket_.async_write_some(from, result_in(ec));
    }
    asio::awaitable<void> shut_down_send(error_code& ec) override {
        socket_.shutdown(tcp::socket::shutdown_send, ec);
        co_return;
    }

  private:
    tcp::socket socket_;
};

class TlsTransport final : public Transport {
  public:
    TlsTransport(tcp::socket socket, std::shared_ptr<asio::ssl::context> context)
        : context_(std::move(context)), stream_(std::move(socket), *context_) {}
    tcp::socket& socket() override { return stream_.next_layer(); }
    asio::awaitable<void> handshake(error_code& ec) override {
        return stream_.async_handshake(asio::ssl::stream_base::server, result_in(ec));
    }
    asio::awaitable<size_t> read_some(asio::mutable_buffer to, error_code& ec) override {
        return stream_.async_read_some(to, result_in(ec));
    }
    size_t write_at_once(asio::const_buffer) override { return 0; }
    asio::awaitable<size_t> write_some(asio::const_buffer from, error_code& ec) override {
        return stream_.async_write_some(from, result_in(ec));
    }
    asio::awaitable<void> shut_down_send(error_code& ec) override {
        socket().cancel(ec);  // ends the reading side, which would take the peer's close_notify
        return stream_.async_shutdown(result_in(ec));
    }

  private:
    const std::shared_ptr<asio::ssl::context> context_;
    asio::ssl::stream<tcp::socket> stream_;
};

}  // namespace deepinfer::server
