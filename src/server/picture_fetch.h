// Fetching pictures that a request names by URL, without becoming anybody's tool (vision spec 9,
// online spec 6.2).
//
// What holds, whatever the request says:
//   - http and https only; one parser reads a URL, for the checks and for the connection alike;
//   - a host is resolved once, every address must be public, and the connection goes to an address
//     that was checked: a name that changes its mind later (DNS rebinding) is not asked again;
//   - at most kMaxRedirects redirects, each checked like the first URL, none from https to http;
//   - bytes and time are bounded over all redirects; no proxy, no cookies, no credentials;
//   - what the other side calls the bytes does not matter, and its answer's text reaches no client.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"

struct addrinfo;
struct sockaddr;

namespace deepinfer::server {

struct FetchRules {
    std::vector<std::string> hosts;          ///< set: these alone
    std::vector<std::string> private_hosts;  ///< "name" or "name:port": any address will do
    int64_t max_bytes = int64_t{32} << 20;   ///< of the picture
    std::chrono::steady_clock::time_point deadline;
    const std::atomic<bool>* cancel = nullptr;  ///< set: the fetch ends within 100 ms
    /// Asked for room before bytes are kept; false: there is none (fault 503). Unset: there is.
    std::function<bool(int64_t bytes)> room = {};
    /// getaddrinfo() unless set (tests). Its result is freed by freeaddrinfo().
    std::function<int(const char* host, const char* service, const addrinfo* hints, addrinfo** out)>
        resolve = {};
};

constexpr int kMaxRedirects = 3;
constexpr size_t kMaxUrlBytes = 8192;

struct FetchResult {
    std::string body;
    /// 0: fetched. 400: refused, or the address is wrong. 500: the other side failed, which may
    /// pass (5xx, no connection, too slow). 503: no room for it here.
    int fault = 0;
    std::string message;
};

/// Blocks until the picture is there. Any thread.
FetchResult fetch_picture(const std::string& url, const FetchRules& rules);

/// Whether an address is one of the public internet. Everything that is set aside for something
/// else (loopback, private, link-local, shared, documentation, multicast, cloud metadata, and IPv6
/// forms that carry an IPv4 address) is not.
bool is_public_address(const sockaddr* address);

struct FetchUrl {
    bool tls = false;
    std::string host;  ///< lower case; IPv6 without brackets
    int port = 80;
    std::string target;  ///< path and query, as sent
};
/// Strict: no credentials, no spaces, ASCII only. kInvalidArgument.
Result<FetchUrl> parse_fetch_url(std::string_view text);
/// What a redirect leads to; relative addresses are those of the same host. kInvalidArgument: to
/// nothing, or from https to http.
Result<FetchUrl> redirect_target(const FetchUrl& from, const std::string& location);

}  // namespace deepinfer::server
