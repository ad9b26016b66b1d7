// What may be fetched: public addresses, and URLs that are read one way.
#include "server/picture_fetch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

namespace deepinfer::server {
namespace {

TEST(PictureFetch, AddressesThatAreNotPublic) {
    const auto is_public = [](const char* text) {
        sockaddr_in v4{};
        v4.sin_family = AF_INET;
        sockaddr_in6 v6{};
        v6.sin6_family = AF_INET6;
        if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
            return is_public_address(reinterpret_cast<const sockaddr*>(&v4));
        EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1) << text;
        return is_public_address(reinterpret_cast<const sockaddr*>(&v6));
    };
    for (const char* text : {"0.0.0.0",
                             "0.1.2.3",
                             "10.0.0.1",
                             "10.255.255.255",
                             "100.64.0.1",
                             "100.127.255.255",
                             "100.100.100.200",
                             "127.0.0.1",
                             "127.255.255.254",
                             "169.254.169.254",
                             "169.254.0.1",
                             "172.16.0.1",
                             "172.31.255.255",
                             "192.0.0.192",
                             "192.0.2.1",
                             "192.88.99.1",
                             "192.168.0.1",
                             "198.18.0.1",
                             "198.19.255.255",
                             "198.51.100.7",
                             "203.0.113.9",
                             "168.63.129.16",
                             "224.0.0.1",
                             "239.255.255.255",
                             "240.0.0.1",
                             "255.255.255.255",
                             "::",
                             "::1",
                             "::ffff:127.0.0.1",
                             "::ffff:10.0.0.1",
                             "::ffff:169.254.169.254",
                             "::127.0.0.1",
                             "64:ff9b::7f00:1",
                             "64:ff9b:1::1",
                             "fc00::1",
                             "fd00:ec2::254",
                             "fe80::1",
                             "fec0::1",
                             "ff02::1",
                             "2001::1",
                             "2001:db8::1",
                             "2002:7f00:1::",
                             "2002:a00:1::",
                             "3fff::1",
                             "5f00::1",
                             "100::1",
                             "4000::1"})
        EXPECT_FALSE(is_public(text)) << text;
    for (const char* text : {"1.1.1.1",         "8.8.8.8",        "9.255.255.255",
                             "11.0.0.0",        "100.63.255.255", "100.128.0.0",
                             "126.255.255.255", "128.0.0.1",      "169.253.255.255",
                             "172.15.255.255",  "172.32.0.0",     "192.0.1.1",
                             "192.167.255.255", "198.17.255.255", "198.20.0.0",
                             "223.255.255.255", "168.63.129.15",  "::ffff:8.8.8.8",
                             "2606:4700::1111", "2a00:1450::1",   "2001:4860:4860::8888"})
        EXPECT_TRUE(is_public(text)) << text;
    const sockaddr local{AF_UNIX, {}};
    EXPECT_FALSE(is_public_address(&local));
}

TEST(PictureFetch, UrlsAreReadOneWay) {
    const auto shown = [](const char* text) -> std::string {
        const Result<FetchUrl> url = parse_fetch_url(text);
        if (!url.ok()) return "refused";
        return (url->tls ? "s " : "- ") + url->host + " " + std::to_string(url->port) + " " +
               url->target;
    };
    EXPECT_EQ(shown("http://Example.ORG"), "- example.org 80 /");
    EXPECT_EQ(shown("https://example.org/a/b/?q=1#f"), "s example.org 443 /a/b/?q=1");
    EXPECT_EQ(shown("http://example.org?q"), "- example.org 80 /?q");
    EXPECT_EQ(shown("http://example.org:8080/x//y"), "- example.org 8080 /x//y");
    EXPECT_EQ(shown("https://[2606:4700::1111]:444/"), "s 2606:4700::1111 444 /");
    EXPECT_EQ(shown("http://a/"), "- a 80 /");
    EXPECT_EQ(shown("http://a:/x"), "refused");
    EXPECT_EQ(shown("http://a b/"), "refused");
    EXPECT_EQ(shown("http://[::1]x/"), "refused");
}

TEST(PictureFetch, RedirectsLeadNowhereUnsafe) {
    const auto target = [](const char* from, const std::string& location) -> std::string {
        const Result<FetchUrl> url = redirect_target(parse_fetch_url(from).value(), location);
        if (!url.ok()) return "refused";
        return (url->tls ? "s " : "- ") + url->host + " " + std::to_string(url->port) + " " +
               url->target;
    };
    EXPECT_EQ(target("https://a.example/x/y?q", "http://a.example/z"), "refused");
    EXPECT_EQ(target("https://a.example/x/y?q", "https://b.example/z"), "s b.example 443 /z");
    EXPECT_EQ(target("http://a.example/x/y?q", "https://b.example/z"), "s b.example 443 /z");
    EXPECT_EQ(target("https://a.example:8443/x/y?q", "z"), "s a.example 8443 /x/z");
    EXPECT_EQ(target("https://a.example:8443/x/y?q", "/z?w"), "s a.example 8443 /z?w");
    EXPECT_EQ(target("https://a.example/x/y?q", "?w"), "s a.example 443 /x/y?w");
    EXPECT_EQ(target("https://a.example/x", "//b.example/z"), "s b.example 443 /z");
    EXPECT_EQ(target("http://[2606:4700::1]/x", "/z"), "- 2606:4700::1 80 /z");
    for (const char* bad : {"", "file:///etc/passwd", "gopher://a/", "https://user@b/", "//[::1"})
        EXPECT_EQ(target("http://a.example/", bad), "refused") << bad;
    EXPECT_EQ(target("http://a.example/", "/" + std::string(9000, 'x')), "refused");
}

/// Listens on loopback and counts who comes.
class Inner {
  public:
    Inner() {
        fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        sockaddr_in any{};
        any.sin_family = AF_INET;
        any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof any;
        EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&any), size), 0);
        EXPECT_EQ(::listen(fd_, 16), 0);
        EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&any), &size), 0);
        port_ = ntohs(any.sin_port);
    }
    ~Inner() { ::close(fd_); }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;
    int port() const { return port_; }
    int visitors() {
        for (;;) {
            const int client = ::accept(fd_, nullptr, nullptr);
            if (client < 0) return visitors_;
            ++visitors_;
            ::close(client);
        }
    }

  private:
    int fd_ = -1, port_ = 0, visitors_ = 0;
};

/// A name server that says something else each time: the answers in order, then the last again.
/// An answer may hold several addresses, with blanks between.
class Names {
  public:
    explicit Names(std::vector<std::string> answers) : answers_(std::move(answers)) {}
    int asked() const { return asked_; }
    int resolve(const char* service, const addrinfo* hints, addrinfo** out) {
        const size_t i = std::min(static_cast<size_t>(asked_++), answers_.size() - 1);
        std::istringstream list(answers_[i]);
        std::string address;
        addrinfo** last = out;
        while (list >> address) {
            addrinfo numeric = *hints;
            numeric.ai_flags |= AI_NUMERICHOST;
            if (const int fault = getaddrinfo(address.c_str(), service, &numeric, last))
                return fault;
            while (*last != nullptr) last = &(*last)->ai_next;
        }
        return 0;
    }

  private:
    const std::vector<std::string> answers_;
    int asked_ = 0;
};

// The address that was looked at is the one that is connected to, whatever the name says next.
TEST(PictureFetch, ANameThatChangesItsMindReachesNobody) {
    Inner inner;
    const std::string url = "http://rebinding.example:" + std::to_string(inner.port()) + "/a.png";
    const auto fetch = [&](Names& names) {
        FetchRules rules;
        rules.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
        rules.resolve = [&](const char*, const char* service, const addrinfo* hints, addrinfo** o) {
            return names.resolve(service, hints, o);
        };
        return fetch_picture(url, rules);
    };
    // Public when asked, private when asked again: nobody asks again. (Nothing answers there.)
    Names rebinding({"192.0.1.1", "127.0.0.1"});
    EXPECT_EQ(fetch(rebinding).fault, 500);
    EXPECT_EQ(rebinding.asked(), 1);
    // One of several is enough to refuse, wherever it stands.
    for (const char* mixed : {"192.0.1.1 127.0.0.1", "127.0.0.1 192.0.1.1", "192.0.1.1 ::1"}) {
        Names names({mixed});
        EXPECT_EQ(fetch(names).fault, 400) << mixed;
        EXPECT_EQ(names.asked(), 1);
    }
    Names inside({"127.0.0.1", "192.0.1.1"});
    EXPECT_EQ(fetch(inside).fault, 400);
    EXPECT_EQ(inner.visitors(), 0);
}

TEST(PictureFetch, ARedirectToANameThatChangesItsMindReachesNobody) {
    // The first host may be private; it redirects to one that may not.
    Inner inner;
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof any;
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&any), size), 0);
    ASSERT_EQ(::listen(fd, 4), 0);
    ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&any), &size), 0);
    std::thread origin([&] {
        const int client = ::accept(fd, nullptr, nullptr);
        const std::string answer =
            "HTTP/1.1 302 Found\r\nLocation: http://next.example:" + std::to_string(inner.port()) +
            "/\r\nContent-Length: 0\r\n\r\n";
        EXPECT_GT(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL), 0);
        ::close(client);
    });
    Names next({"192.0.1.1", "127.0.0.1"});
    FetchRules rules;
    rules.private_hosts = {"first.example"};
    rules.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
    rules.resolve =
        [&](const char* host, const char* service, const addrinfo* hints, addrinfo** out) {
            if (std::string(host) == "next.example") return next.resolve(service, hints, out);
            Names first({"127.0.0.1"});
            return first.resolve(service, hints, out);
        };
    const FetchResult r =
        fetch_picture("http://first.example:" + std::to_string(ntohs(any.sin_port)) + "/", rules);
    origin.join();
    ::close(fd);
    EXPECT_EQ(r.fault, 500) << r.message;
    EXPECT_EQ(next.asked(), 1);
    EXPECT_EQ(inner.visitors(), 0);
}

}  // namespace
}  // namespace deepinfer::server
