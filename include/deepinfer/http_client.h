// A small HTTP client: for `deepinfer chat --url`, and to put load on a server.
//
//   auto status = http_post(url, {{"authorization", "Bearer " + key}}, body,
//                           [](std::string_view piece) { return true; }, &answer_status);
//
// HTTP/1.1, http and https (certificates are checked against the system's), no redirects, no
// proxies.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct HttpUrl {
    bool tls = false;
    std::string host;
    int port = 80;
    std::string path;  ///< "" or begins with '/', no '/' at its end
};
/// "http://host[:port][/path]" or https; kInvalidArgument otherwise.
Result<HttpUrl> parse_http_url(const std::string& text);

struct HttpCall {
    HttpUrl url;  ///< with the whole path
    std::string method = "POST";
    std::vector<std::pair<std::string, std::string>> fields;
    std::string body;  ///< JSON
    /// Pieces of the answer's body as they come; false ends the call.
    std::function<bool(int status, std::string_view piece)> on_data;
    const std::atomic<bool>* cancel = nullptr;  ///< set: the call ends within 100 ms
    int64_t timeout_ms = 600'000;               ///< of a silent server
};
/// The answer's status; its body went to on_data. kUnavailable: no connection, or it broke;
/// kCancelled; kInvalidFile: the answer is no HTTP.
Result<int> http_call(const HttpCall& call);

/// Takes the data of an event stream apart.
class EventReader {
  public:
    /// Calls `on_event(event, data)` for every whole event in what has come so far; false ends it.
    bool feed(std::string_view bytes,
              const std::function<bool(std::string_view event, std::string_view data)>& on_event);

  private:
    std::string pending_;
};

struct LoadOptions {
    HttpUrl url;  ///< of the server, without a path of a route
    std::vector<std::pair<std::string, std::string>> fields;
    std::string path = "/v1/chat/completions";
    std::vector<std::string> bodies;  ///< request i sends bodies[i % size]
    int64_t requests = 64;
    int64_t streams = 16;          ///< at once
    bool keep_alive = true;        ///< one connection does many requests
    int64_t timeout_ms = 600'000;  ///< of the whole run
    /// Looks at a whole answer (all data of its events, or its body): "" or what is wrong with it.
    std::function<std::string(int64_t request, int status, const std::string& body)> check;
};
struct LoadReport {
    int64_t ok = 0;
    int64_t failed = 0;
    std::vector<std::string> faults;  ///< the first ten
    int64_t events = 0;               ///< frames of event streams
    int64_t bytes = 0;
    double seconds = 0;
    std::vector<double> first_byte_ms;   ///< of the body, by request
    std::vector<double> first_token_ms;  ///< second event of a stream
    std::vector<double> total_ms;
};
/// One thread, plain http. kUnavailable: nothing could be connected.
Result<LoadReport> run_load(const LoadOptions& options);

}  // namespace deepinfer
