// Bytes of a connection -> requests. Strict where a front end and this server could disagree about
// where a request ends (request smuggling): one framing, one Host, no folded lines.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "deepinfer/server.h"
#include "server/http_message.h"

namespace deepinfer::server {

/// A request that cannot be read: the status to answer with before closing.
struct HttpFault {
    int status = 400;
    std::string message;
};

/// Reads one connection's requests, one after another. No sockets, no clock.
///
///   RequestReader reader(limits);
///   for (bytes from the socket) reader.feed(bytes);
///   switch (reader.state()) …
class RequestReader {
  public:
    enum class State {
        kHead,   ///< the head is not complete
        kBody,   ///< head() is complete, the body is not
        kReady,  ///< the whole request is here: take()
        kFault,  ///< fault(); nothing more is read
    };

    explicit RequestReader(const ServerLimits& limits);
    ~RequestReader();

    /// Takes over bytes of the socket and reads as far as this request goes. What follows is kept
    /// for the next one.
    void feed(std::string_view bytes);
    State state() const;
    /// With kBody and kReady. Valid until the next call that is not const.
    const HttpRequest& head() const;
    const HttpFault& fault() const;
    /// What Content-Length says; 0 without one. With kBody and kReady.
    int64_t said_body_bytes() const;
    /// Bytes of the body that have arrived.
    int64_t body_bytes() const;
    /// Lowers the bound of this request's body (a route's own); before the body is read.
    void limit_body(int64_t bytes);
    /// The request; the reader goes on with the next one (and with the bytes already there).
    HttpRequest take();
    /// No byte of the next request has arrived.
    bool idle() const;
    /// Bytes kept for later requests.
    size_t buffered() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::server
