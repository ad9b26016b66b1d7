#include "server/picture_fetch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "server/response_reader.h"

namespace deepinfer::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxHeadBytes = 16 << 10;

FetchResult refused(std::string message) {
    return {"", 400, std::move(message)};
}
FetchResult failed(std::string message) {
    return {"", 500, std::move(message)};
}

// ------------------------------------------------------------------ addresses

struct Block4 {
    uint32_t base;
    int bits;
};
// IANA's special-purpose registry, and the addresses under which clouds answer their own machines.
constexpr Block4 kNotPublic4[] = {
    {0x00000000, 8},   // 0.0.0.0: this network
    {0x0A000000, 8},   // 10: private
    {0x64400000, 10},  // 100.64: shared (and a cloud's metadata)
    {0x7F000000, 8},   // 127: loopback
    {0xA9FE0000, 16},  // 169.254: link-local, metadata
    {0xAC100000, 12},  // 172.16: private
    {0xC0000000, 24},  // 192.0.0: protocol assignments
    {0xC0000200, 24},  // 192.0.2: documentation
    {0xC0586300, 24},  // 192.88.99: 6to4 relays
    {0xC0A80000, 16},  // 192.168: private
    {0xC6120000, 15},  // 198.18: benchmarks
    {0xC6336400, 24},  // 198.51.100: documentation
    {0xCB007100, 24},  // 203.0.113: documentation
    {0xA83F8110, 32},  // 168.63.129.16: a cloud's wire server
    {0xE0000000, 4},   // 224: multicast
    {0xF0000000, 4},   // 240: reserved, broadcast
};

bool is_public4(uint32_t address) {
    return std::none_of(std::begin(kNotPublic4), std::end(kNotPublic4), [address](Block4 b) {
        const uint32_t mask = b.bits == 32 ? 0xFFFFFFFFU : ~(0xFFFFFFFFU >> b.bits);
        return (address & mask) == b.base;
    });
}

bool is_public6(const uint8_t* a) {
    const auto begins = [a](std::initializer_list<uint8_t> bytes) {
        return std::equal(bytes.begin(), bytes.end(), a);
    };
    constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    if (std::equal(kMapped.begin(), kMapped.end(), a)) {
        return is_public4(static_cast<uint32_t>(a[12]) << 24 | static_cast<uint32_t>(a[13]) << 16 |
                          static_cast<uint32_t>(a[14]) << 8 | a[15]);
    }
    // Global unicast is 2000::/3; all else is loopback, unique local, link-local, multicast, a
    // translation of IPv4, or not assigned.
    if ((a[0] & 0xE0) != 0x20) return false;
    if (a[0] == 0x20 && a[1] == 0x01 && (a[2] & 0xFE) == 0) return false;  // 2001::/23 Teredo, …
    if (begins({0x20, 0x01, 0x0D, 0xB8})) return false;                    // documentation
    if (begins({0x20, 0x02})) return false;                                // 6to4: carries IPv4
    if (a[0] == 0x3F && a[1] == 0xFF && (a[2] & 0xF0) == 0) return false;  // documentation
    return true;
}

// ------------------------------------------------------------------ the connection

struct FreeAddresses {
    void operator()(addrinfo* a) const { freeaddrinfo(a); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

/// A socket with the deadline and the cancellation of the rules.
class Stream {
  public:
    explicit Stream(const FetchRules& rules) : rules_(rules) {}
    ~Stream() {
        if (ssl_ != nullptr) SSL_free(ssl_);
        if (context_ != nullptr) SSL_CTX_free(context_);
        if (fd_ >= 0) ::close(fd_);
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    /// "" or what went wrong.
    std::string connect(const addrinfo* addresses) {
        std::string why = "no address";
        for (const addrinfo* a = addresses; a != nullptr; a = a->ai_next) {
            fd_ = ::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
            if (fd_ < 0) continue;
            int fault = ::connect(fd_, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
            if (fault == EINPROGRESS) {
                if (!wait(POLLOUT)) return over();
                socklen_t size = sizeof fault;
                if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &fault, &size) != 0) fault = errno;
            }
            if (fault == 0) return {};
            why = std::strerror(fault);
            ::close(fd_);
            fd_ = -1;
        }
        return "no connection: " + why;
    }

    std::string start_tls(const std::string& host) {
        context_ = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_min_proto_version(context_, TLS1_2_VERSION);
        SSL_CTX_set_default_verify_paths(context_);
        SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
        ssl_ = SSL_new(context_);
        SSL_set_fd(ssl_, fd_);
        in6_addr numeric{};
        const bool is_address = inet_pton(AF_INET, host.c_str(), &numeric) == 1 ||
                                inet_pton(AF_INET6, host.c_str(), &numeric) == 1;
        if (is_address) {
            X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_), host.c_str());
        } else {
            SSL_set_tlsext_host_name(ssl_, host.c_str());
            SSL_set1_host(ssl_, host.c_str());
        }
        for (;;) {
            const int n = SSL_connect(ssl_);
            if (n == 1) return {};
            if (!again(n)) break;
            if (!wait(events_)) return over();
        }
        const long verify = SSL_get_verify_result(ssl_);
        return verify != X509_V_OK ? X509_verify_cert_error_string(verify) : "no TLS connection";
    }

    std::string write(std::string_view bytes) {
        while (!bytes.empty()) {
            if (ssl_ != nullptr) {
                const int n = SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()));
                if (n > 0) {
                    bytes.remove_prefix(static_cast<size_t>(n));
                    continue;
                }
                if (!again(n)) return "the connection broke";
            } else {
                const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
                if (n > 0) {
                    bytes.remove_prefix(static_cast<size_t>(n));
                    continue;
                }
                if (errno != EAGAIN && errno != EINTR) return "the connection broke";
                events_ = POLLOUT;
            }
            if (!wait(events_)) return over();
        }
        return {};
    }

    /// Bytes read, 0 at the end; nothing when time is up or the connection broke (see fault()).
    std::optional<size_t> read(char* to, int size) {
        for (;;) {
            if (ssl_ != nullptr) {
                const int n = SSL_read(ssl_, to, size);
                if (n > 0) return static_cast<size_t>(n);
                if (SSL_get_error(ssl_, n) == SSL_ERROR_ZERO_RETURN) return 0;
                if (!again(n)) break;
            } else {
                const ssize_t n = ::recv(fd_, to, static_cast<size_t>(size), 0);
                if (n >= 0) return static_cast<size_t>(n);
                if (errno != EAGAIN && errno != EINTR) break;
                events_ = POLLIN;
            }
            if (!wait(events_)) {
                fault_ = over();
                return std::nullopt;
            }
        }
        fault_ = "the connection broke";
        return std::nullopt;
    }
    const std::string& fault() const { return fault_; }

  private:
    /// Whether TLS wants another event; notes which.
    bool again(int n) {
        const int error = SSL_get_error(ssl_, n);
        events_ = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
        return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
    }

    /// False: time is up, or the request was given up.
    bool wait(short events) {
        for (;;) {
            if (rules_.cancel != nullptr && rules_.cancel->load()) return false;
            const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                rules_.deadline - Clock::now());
            if (left.count() <= 0) return false;
            pollfd p{fd_, events, 0};
            const int ready = ::poll(&p, 1, static_cast<int>(std::min<int64_t>(left.count(), 100)));
            if (ready > 0) return true;
            if (ready < 0 && errno != EINTR) return false;
        }
    }

    static std::string over() { return "it took too long"; }

    const FetchRules& rules_;
    int fd_ = -1;
    short events_ = POLLIN;
    SSL_CTX* context_ = nullptr;
    SSL* ssl_ = nullptr;
    std::string fault_;
};

// ------------------------------------------------------------------ one hop

bool listed(const std::vector<std::string>& list, const FetchUrl& url) {
    const std::string with_port = url.host + ":" + std::to_string(url.port);
    return std::any_of(list.begin(), list.end(), [&](std::string entry) {
        std::transform(entry.begin(), entry.end(), entry.begin(), [](unsigned char c) {
            return static_cast<char>(std::tolower(c));
        });
        return entry == url.host || entry == with_port;
    });
}

/// The value of a field in a head that ends by a blank line; "" if there is none.
std::string head_field(std::string_view head, std::string_view name) {
    size_t at = head.find("\r\n");
    while (at != std::string_view::npos && at + 2 < head.size()) {
        const size_t begin = at + 2;
        at = head.find("\r\n", begin);
        const std::string_view line = head.substr(begin, at - begin);
        const size_t colon = line.find(':');
        if (colon != name.size()) continue;
        const bool same = std::equal(name.begin(), name.end(), line.begin(), [](char a, char b) {
            return a == std::tolower(static_cast<unsigned char>(b));
        });
        if (!same) continue;
        std::string_view value = line.substr(colon + 1);
        while (!value.empty() && (value.front() == ' ' || value.front() == '\t'))
            value.remove_prefix(1);
        while (!value.empty() && (value.back() == ' ' || value.back() == '\t'))
            value.remove_suffix(1);
        return std::string(value);
    }
    return {};
}

bool is_redirect(int status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

struct Hop {
    int status = 0;
    std::string location;
    FetchResult result;
};

std::string request_text(const FetchUrl& url) {
    const std::string host =
        url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
    const bool usual = url.port == (url.tls ? 443 : 80);
    return "GET " + url.target + " HTTP/1.1\r\nhost: " + host +
           (usual ? "" : ":" + std::to_string(url.port)) +
           "\r\naccept: image/*\r\naccept-encoding: identity\r\nuser-agent: deepinfer/" +
           DEEPINFER_VERSION + "\r\nconnection: close\r\n\r\n";
}

/// Resolves the host and refuses it unless every address may be connected to.
FetchResult resolve(const FetchUrl& url, const FetchRules& rules, Addresses* out) {
    if (!rules.hosts.empty() && !listed(rules.hosts, url))
        return refused("pictures are not fetched from this host");
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const std::string port = std::to_string(url.port);
    const int fault = rules.resolve ? rules.resolve(url.host.c_str(), port.c_str(), &hints, &found)
                                    : getaddrinfo(url.host.c_str(), port.c_str(), &hints, &found);
    out->reset(found);
    if (fault == EAI_NONAME) return refused("its host is not known");
    if (fault != 0) return failed("its host cannot be resolved now");
    if (listed(rules.private_hosts, url)) return {};
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next)
        if (!is_public_address(a->ai_addr)) return refused("its host is not a public one");
    return {};
}

Hop fetch_hop(const FetchUrl& url, const FetchRules& rules) {
    Hop hop;
    Addresses addresses;
    hop.result = resolve(url, rules, &addresses);
    if (hop.result.fault != 0) return hop;
    Stream stream(rules);
    std::string fault = stream.connect(addresses.get());
    if (fault.empty() && url.tls) fault = stream.start_tls(url.host);
    if (fault.empty()) fault = stream.write(request_text(url));
    if (!fault.empty()) {
        hop.result = failed(fault);
        return hop;
    }
    ResponseReader reader;
    std::string head;
    bool head_done = false;
    std::string& body = hop.result.body;
    std::string buffer(64 << 10, '\0');
    using State = ResponseReader::State;
    while (reader.state() != State::kDone && reader.state() != State::kFault) {
        const std::optional<size_t> n = stream.read(buffer.data(), static_cast<int>(buffer.size()));
        if (!n) {
            hop.result = failed(stream.fault());
            return hop;
        }
        std::string_view bytes(buffer.data(), *n);
        if (*n == 0) {
            reader.end();
            break;
        }
        if (!head_done) {
            head.append(bytes);
            const size_t end = head.find("\r\n\r\n");
            if (end == std::string::npos && head.size() > kMaxHeadBytes) break;
            if (end == std::string::npos) continue;
            head_done = true;
            bytes = head;
        }
        const size_t before = body.size();
        reader.feed(bytes, &body);
        if (rules.room && !rules.room(static_cast<int64_t>(body.size() - before))) {
            hop.result = {"", 503, "too many bytes of requests are held"};
            return hop;
        }
        if (is_redirect(reader.status()) || reader.status() >= 400) break;
        if (static_cast<int64_t>(body.size()) > rules.max_bytes) {
            hop.result = refused("it has more than the " + std::to_string(rules.max_bytes) +
                                 " bytes that a picture may have");
            return hop;
        }
    }
    hop.status = reader.status();
    if (is_redirect(hop.status))
        hop.location =
            head_field(std::string_view(head).substr(0, head.find("\r\n\r\n") + 2), "location");
    if (hop.status == 200 && reader.state() != State::kDone)
        hop.result = failed("its answer ends too early");
    if (hop.status == 0) hop.result = failed("its host answers no HTTP");
    return hop;
}

}  // namespace

bool is_public_address(const sockaddr* address) {
    if (address->sa_family == AF_INET) {
        sockaddr_in v4{};
        std::memcpy(&v4, address, sizeof v4);
        return is_public4(ntohl(v4.sin_addr.s_addr));
    }
    if (address->sa_family == AF_INET6) {
        sockaddr_in6 v6{};
        std::memcpy(&v6, address, sizeof v6);
        return is_public6(v6.sin6_addr.s6_addr);
    }
    return false;
}

Result<FetchUrl> parse_fetch_url(std::string_view text) {
    const auto invalid = [](const char* what) {
        return Status(StatusCode::kInvalidArgument, what);
    };
    if (text.size() > kMaxUrlBytes) return invalid("its URL has more than 8192 bytes");
    const bool clean = std::all_of(text.begin(), text.end(), [](char c) {
        return c > 0x20 && c < 0x7f && c != '\\' && c != '"' && c != '<' && c != '>';
    });
    if (!clean) return invalid("its URL holds characters that no URL has");
    const auto lower = [](std::string_view part) {
        std::string out(part);
        std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) {
            return static_cast<char>(std::tolower(c));
        });
        return out;
    };
    FetchUrl url;
    const std::string scheme = lower(text.substr(0, text.find(':')));
    if (scheme != "http" && scheme != "https") return invalid("its URL is not http or https");
    url.tls = scheme == "https";
    url.port = url.tls ? 443 : 80;
    std::string_view rest = text.substr(scheme.size() + 1);
    if (rest.substr(0, 2) != "//") return invalid("its URL names no host");
    rest.remove_prefix(2);
    const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
    std::string_view target = rest.substr(authority.size());
    target = target.substr(0, target.find('#'));
    url.target =
        target.empty() || target[0] == '?' ? "/" + std::string(target) : std::string(target);
    std::string_view host = authority;
    std::string_view port;
    if (!authority.empty() && authority[0] == '[') {
        const size_t close = authority.find(']');
        if (close == std::string_view::npos) return invalid("its URL has an open bracket");
        host = authority.substr(1, close - 1);
        port = authority.substr(close + 1);
        in6_addr numeric{};
        if (inet_pton(AF_INET6, std::string(host).c_str(), &numeric) != 1)
            return invalid("its URL holds no valid address in brackets");
    } else {
        host = authority.substr(0, authority.find(':'));
        port = authority.substr(host.size());
        const bool plain = std::all_of(host.begin(), host.end(), [](char c) {
            return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' ||
                   c == '_';
        });
        if (!plain) return invalid("its URL names no valid host");
    }
    if (host.empty() || host.size() > 253) return invalid("its URL names no valid host");
    if (!port.empty()) {
        port.remove_prefix(1);
        if (authority[authority.size() - port.size() - 1] != ':' || port.empty() ||
            port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos)
            return invalid("its URL has no valid port");
        url.port = std::stoi(std::string(port));
        if (url.port < 1 || url.port > 65535) return invalid("its URL has no valid port");
    }
    url.host = lower(host);
    return url;
}

Result<FetchUrl> redirect_target(const FetchUrl& from, const std::string& location) {
    const Status bad(StatusCode::kInvalidArgument, "it is redirected to no valid address");
    if (location.empty() || location.size() > kMaxUrlBytes) return bad;
    if (location.find("://") != std::string::npos && location[0] != '/') {
        Result<FetchUrl> to = parse_fetch_url(location);
        if (!to.ok()) return bad;
        if (from.tls && !to->tls)
            return Status(StatusCode::kInvalidArgument, "it is redirected from https to http");
        return to;
    }
    const std::string host =
        from.host.find(':') == std::string::npos ? from.host : "[" + from.host + "]";
    const std::string scheme = from.tls ? "https:" : "http:";
    std::string text;
    if (location.substr(0, 2) == "//") {
        text = scheme + location;
    } else {
        const std::string base = scheme + "//" + host + ":" + std::to_string(from.port);
        const std::string path = from.target.substr(0, from.target.find('?'));
        if (location[0] == '/') {
            text = base + location;
        } else if (location[0] == '?') {
            text = base + path + location;
        } else {
            text = base + path.substr(0, path.rfind('/') + 1) + location;
        }
    }
    Result<FetchUrl> to = parse_fetch_url(text);
    return to.ok() ? std::move(to) : Result<FetchUrl>(bad);
}

FetchResult fetch_picture(const std::string& url, const FetchRules& rules) {
    Result<FetchUrl> at = parse_fetch_url(url);
    if (!at.ok()) return refused(at.status().message());
    for (int hops = 0; hops <= kMaxRedirects; ++hops) {
        Hop hop = fetch_hop(at.value(), rules);
        if (hop.result.fault != 0) return std::move(hop.result);
        if (hop.status == 200) return std::move(hop.result);
        if (is_redirect(hop.status)) {
            at = redirect_target(at.value(), hop.location);
            if (!at.ok()) return refused(at.status().message());
            continue;
        }
        const std::string what = "its host answers " + std::to_string(hop.status);
        return hop.status >= 500 || hop.status == 429 ? failed(what) : refused(what);
    }
    return refused("it is redirected more than " + std::to_string(kMaxRedirects) + " times");
}

}  // namespace deepinfer::server
