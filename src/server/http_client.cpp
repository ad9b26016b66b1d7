// The blocking client behind `deepinfer chat --url`.
#include "deepinfer/http_client.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "server/response_reader.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

Status unavailable(const std::string& what) {
    return {StatusCode::kUnavailable, what};
}

/// A blocking stream with time limits, over TCP or TLS.
class Stream {
  public:
    ~Stream() {
        if (ssl_ != nullptr) SSL_free(ssl_);
        if (context_ != nullptr) SSL_CTX_free(context_);
        if (fd_ >= 0) ::close(fd_);
    }

    Status connect(const HttpUrl& url) {
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        addrinfo* found = nullptr;
        const std::string port = std::to_string(url.port);
        const int fault = getaddrinfo(url.host.c_str(), port.c_str(), &hints, &found);
        if (fault != 0) return unavailable(url.host + ": " + gai_strerror(fault));
        const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
        std::string why = "no address";
        for (const addrinfo* a = found; a != nullptr && fd_ < 0; a = a->ai_next) {
            const int fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
            if (fd < 0) continue;
            if (::connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
                fd_ = fd;
            } else {
                why = std::strerror(errno);
                ::close(fd);
            }
        }
        if (fd_ < 0) return unavailable("cannot connect to " + url.host + ":" + port + ": " + why);
        return url.tls ? start_tls(url.host) : Status();
    }

    Status write(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t n =
                ssl_ != nullptr
                    ? SSL_write(ssl_,
                                bytes.data(),
                                static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20)))
                    : ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (n <= 0) return unavailable("the connection broke while sending");
            bytes.remove_prefix(static_cast<size_t>(n));
        }
        return {};
    }

    /// Bytes read; 0 at the end, −1 when `wait_ms` have passed, −2 on an error.
    int read(char* to, int size, int wait_ms) {
        if (ssl_ == nullptr || SSL_pending(ssl_) == 0) {
            pollfd p{fd_, POLLIN, 0};
            const int ready = ::poll(&p, 1, wait_ms);
            if (ready == 0 || (ready < 0 && errno == EINTR)) return -1;
            if (ready < 0) return -2;
        }
        if (ssl_ != nullptr) {
            const int n = SSL_read(ssl_, to, size);
            if (n > 0) return n;
            const int error = SSL_get_error(ssl_, n);
            return error == SSL_ERROR_ZERO_RETURN ? 0 : error == SSL_ERROR_WANT_READ ? -1 : -2;
        }
        const ssize_t n = ::recv(fd_, to, static_cast<size_t>(size), 0);
        return n >= 0 ? static_cast<int>(n) : errno == EINTR ? -1 : -2;
    }

  private:
    Status start_tls(const std::string& host) {
        context_ = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_min_proto_version(context_, TLS1_2_VERSION);
        SSL_CTX_set_default_verify_paths(context_);
        SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
        ssl_ = SSL_new(context_);
        SSL_set_fd(ssl_, fd_);
        SSL_set_tlsext_host_name(ssl_, host.c_str());
        SSL_set1_host(ssl_, host.c_str());
        if (SSL_connect(ssl_) == 1) return {};
        const long verify = SSL_get_verify_result(ssl_);
        if (verify != X509_V_OK)
            return unavailable(host + ": " + X509_verify_cert_error_string(verify));
        char text[200] = "";
        ERR_error_string_n(ERR_get_error(), text, sizeof text);
        return unavailable(host + ": " + text);
    }

    int fd_ = -1;
    SSL_CTX* context_ = nullptr;
    SSL* ssl_ = nullptr;
};

std::string request_text(const HttpCall& call) {
    const bool default_port = call.url.port == (call.url.tls ? 443 : 80);
    const std::string host =
        call.url.host.find(':') == std::string::npos ? call.url.host : "[" + call.url.host + "]";
    std::string out = call.method + " " + (call.url.path.empty() ? "/" : call.url.path) +
                      " HTTP/1.1\r\nhost: " + host +
                      (default_port ? "" : ":" + std::to_string(call.url.port)) +
                      "\r\nconnection: close\r\n";
    if (!call.body.empty())
        out += "content-type: application/json\r\ncontent-length: " +
               std::to_string(call.body.size()) + "\r\n";
    for (const auto& [name, value] : call.fields) out += name + ": " + value + "\r\n";
    return out + "\r\n" + call.body;
}

}  // namespace

Result<HttpUrl> parse_http_url(const std::string& text) {
    const auto invalid = [&text](const char* what) {
        return Status(StatusCode::kInvalidArgument,
                      "'" + text + "' " + what + ", expected http://host[:port][/path] or https");
    };
    HttpUrl url;
    size_t at = 0;
    if (text.rfind("http://", 0) == 0) {
        at = 7;
    } else if (text.rfind("https://", 0) == 0) {
        at = 8;
        url.tls = true;
        url.port = 443;
    } else {
        return invalid("is no http URL");
    }
    const size_t slash = std::min(text.find('/', at), text.size());
    std::string authority = text.substr(at, slash - at);
    url.path = text.substr(slash);
    while (!url.path.empty() && url.path.back() == '/') url.path.pop_back();
    const bool clean = std::all_of(text.begin(), text.end(), [](char c) {
        return c > 0x20 && c < 0x7f && c != '"' && c != '\\';
    });
    if (!clean || authority.find('@') != std::string::npos) return invalid("is no plain URL");
    size_t colon = authority.rfind(':');
    if (!authority.empty() && authority[0] == '[') {
        const size_t close = authority.find(']');
        if (close == std::string::npos) return invalid("has an open bracket");
        url.host = authority.substr(1, close - 1);
        colon = close + 1 < authority.size() ? close + 1 : std::string::npos;
    } else {
        url.host = authority.substr(0, colon);
    }
    if (colon != std::string::npos) {
        const std::string port = authority.substr(colon + 1);
        if (port.empty() || port.size() > 5 ||
            port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535 ||
            std::stoi(port) == 0)
            return invalid("has no valid port");
        url.port = std::stoi(port);
    }
    if (url.host.empty()) return invalid("names no host");
    return url;
}

Result<int> http_call(const HttpCall& call) {
    Stream stream;
    DI_RETURN_IF_ERROR(stream.connect(call.url));
    DI_RETURN_IF_ERROR(stream.write(request_text(call)));
    server::ResponseReader reader;
    std::string buffer(64 << 10, '\0');
    std::string body;
    Clock::time_point last = Clock::now();
    using State = server::ResponseReader::State;
    while (reader.state() != State::kDone && reader.state() != State::kFault) {
        if (call.cancel != nullptr && call.cancel->load())
            return Status(StatusCode::kCancelled, "cancelled");
        const int n = stream.read(buffer.data(), static_cast<int>(buffer.size()), 100);
        if (n == -1) {
            if (Clock::now() - last > std::chrono::milliseconds(call.timeout_ms))
                return unavailable("the server is silent");
            continue;
        }
        last = Clock::now();
        if (n <= 0) {
            reader.end();
            if (reader.state() == State::kFault)
                return unavailable("the server closed the connection within an answer");
            break;
        }
        body.clear();
        reader.feed({buffer.data(), static_cast<size_t>(n)}, &body);
        if (!body.empty() && call.on_data && !call.on_data(reader.status(), body))
            return reader.status();
    }
    if (reader.state() == State::kFault)
        return Status(StatusCode::kInvalidFile, "the server's answer is no HTTP");
    return reader.status();
}

bool EventReader::feed(std::string_view bytes,
                       const std::function<bool(std::string_view, std::string_view)>& on_event) {
    pending_.append(bytes);
    size_t at = 0;
    bool go_on = true;
    for (size_t end; go_on && (end = pending_.find("\n\n", at)) != std::string::npos;
         at = end + 2) {
        std::string_view frame(pending_);
        frame = frame.substr(at, end - at);
        std::string_view name;
        std::string_view data;
        while (!frame.empty()) {
            const size_t line_end = std::min(frame.find('\n'), frame.size());
            const std::string_view line = frame.substr(0, line_end);
            if (line.substr(0, 7) == "event: ") name = line.substr(7);
            if (line.substr(0, 6) == "data: ") data = line.substr(6);
            frame.remove_prefix(std::min(line_end + 1, frame.size()));
        }
        if (!data.empty()) go_on = on_event(name, data);
    }
    pending_.erase(0, at);
    return go_on;
}

}  // namespace deepinfer
