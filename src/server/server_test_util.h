// A server with a scripted backend in this process, and raw sockets to talk to it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "deepinfer/http_client.h"
#include "deepinfer/server.h"
#include "server/response_reader.h"

namespace deepinfer::server {

using nlohmann::json;

inline std::string demo_dir() {
    return std::string(DEEPINFER_SOURCE_DIR) + "/models/demo";
}

/// A blocking socket with a limit on every wait.
class RawSocket {
  public:
    explicit RawSocket(int port) {
        fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
    }
    ~RawSocket() { close(); }
    RawSocket(const RawSocket&) = delete;
    RawSocket& operator=(const RawSocket&) = delete;

    bool open() const { return fd_ >= 0; }
    void close() {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }
    /// Ends with a reset instead of an orderly end.
    void reset() {
        const linger now{1, 0};
        setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close();
    }
    void half_close() { ::shutdown(fd_, SHUT_WR); }
    void small_receive_buffer(int bytes = 2048) {
        setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    /// False once the peer does not take any more.
    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (n <= 0) return false;
            bytes.remove_prefix(static_cast<size_t>(n));
        }
        return true;
    }
    /// What comes within `ms`, at most one buffer; "" at the end or when nothing comes.
    std::string receive(int ms = 10000, bool* ended = nullptr) {
        if (ended != nullptr) *ended = false;
        pollfd p{fd_, POLLIN, 0};
        if (::poll(&p, 1, ms) <= 0) return {};
        char buffer[65536];
        const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
        if (n <= 0 && ended != nullptr) *ended = true;
        return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : std::string();
    }
    /// Takes at most `bytes` of what is there, without waiting.
    void receive_some(size_t bytes) {
        std::string buffer(bytes, ' ');
        ::recv(fd_, buffer.data(), bytes, MSG_DONTWAIT);
    }
    /// Reads until `text` has come or `ms` have passed.
    std::string receive_until(const std::string& text, int ms = 10000) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
        while (all_.find(text) == std::string::npos && std::chrono::steady_clock::now() < end) {
            bool ended = false;
            all_ += receive(100, &ended);
            if (ended) break;
        }
        return all_;
    }
    /// Everything until the peer closes, at most `ms`.
    std::string receive_all(int ms = 10000) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
        bool ended = false;
        while (!ended && std::chrono::steady_clock::now() < end) all_ += receive(100, &ended);
        closed_ = ended;
        return all_;
    }
    bool closed_by_peer() const { return closed_; }

  private:
    int fd_ = -1;
    bool closed_ = false;
    std::string all_;
};

struct HttpResult {
    int status = 0;
    std::string head;
    std::string body;
    json parsed() const { return json::parse(body, nullptr, false); }
    std::string field(const std::string& name) const {
        const size_t at = head.find("\r\n" + name + ": ");
        if (at == std::string::npos) return {};
        const size_t begin = at + name.size() + 4;
        return head.substr(begin, head.find("\r\n", begin) - begin);
    }
};

inline std::string request_text(const std::string& method,
                                const std::string& path,
                                const std::string& body = "",
                                const std::string& fields = "") {
    std::string out =
        method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + fields;
    if (!body.empty()) out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return out + "\r\n" + body;
}

/// One request on a connection of its own.
inline HttpResult call(int port,
                       const std::string& method,
                       const std::string& path,
                       const std::string& body = "",
                       const std::string& fields = "",
                       int wait_ms = 20000) {
    RawSocket socket(port);
    socket.send(request_text(method, path, body, fields));
    const std::string all = socket.receive_all(wait_ms);
    HttpResult out;
    out.head = all.substr(0, all.find("\r\n\r\n"));
    ResponseReader reader;
    reader.feed(all, &out.body);
    reader.end();
    out.status = reader.status();
    return out;
}

/// ScriptedBackendOptions with an initializer for every member, so that tests name what they need.
struct Script {
    std::string tokenizer_dir = "";  ///< "": the demonstration checkpoint's; "-": no backend
    std::string text = "";
    bool finish_with_eos = true;
    int64_t max_model_len = 4096;
    int64_t max_queue = 0;
    int64_t max_num_seqs = 256;
    int64_t step_us = 0;
    int64_t cached_tokens = 0;
};

/// Server and backend; the destructor stops both.
class TestServer {
  public:
    explicit TestServer(const Script& s = {}, ServerConfig config = {}) {
        ScriptedBackendOptions script;
        script.tokenizer_dir = s.tokenizer_dir;
        script.text = s.text;
        script.finish_with_eos = s.finish_with_eos;
        script.max_model_len = s.max_model_len;
        script.max_queue = s.max_queue;
        script.max_num_seqs = s.max_num_seqs;
        script.step_us = s.step_us;
        script.cached_tokens = s.cached_tokens;
        config.port = config.admin_port = 0;
        if (config.served_model_names == std::vector<std::string>{"deepseek-flash"})
            config.served_model_names = {"nano"};
        if (config.log_file.empty()) config.log_file = "/dev/null";
        auto started = Server::start(config);
        if (!started.ok()) {
            ADD_FAILURE() << started.status().message();
            std::abort();
        }
        server = std::move(started).value();
        if (script.tokenizer_dir.empty()) script.tokenizer_dir = demo_dir();
        if (script.tokenizer_dir != "-") server->attach(scripted_backend(script).value());
    }
    int port() const { return server->port(); }
    HttpResult post(const std::string& path,
                    const json& body,
                    const std::string& fields = "") const {
        return call(port(), "POST", path, body.dump(), fields);
    }
    HttpResult get(const std::string& path, const std::string& fields = "") const {
        return call(port(), "GET", path, "", fields);
    }
    HttpResult admin(const std::string& path) const {
        return call(server->admin_port(), "GET", path);
    }
    json status() const { return admin("/admin/status").parsed(); }
    /// Waits until `what` of the status document holds.
    bool reaches(const std::function<bool(const json&)>& what, int ms = 5000) const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
        while (std::chrono::steady_clock::now() < end) {
            if (what(status())) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return false;
    }
    /// An ordinary request works.
    void expect_alive() const {
        const HttpResult r = post("/v1/chat/completions", chat());
        EXPECT_EQ(r.status, 200) << r.body;
    }
    static json chat(json more = json::object()) {
        json body = {{"model", "nano"},
                     {"messages", json::array({{{"role", "user"}, {"content", "hi"}}})}};
        body.update(more);
        return body;
    }

    std::unique_ptr<Server> server;
};

/// A backend in front of another; tests override what they bend.
class ForwardingBackend : public InferenceBackend {
  public:
    explicit ForwardingBackend(std::unique_ptr<InferenceBackend> inner)
        : inner_(std::move(inner)) {}
    Result<uint64_t> submit(Request request, RequestCallbacks callbacks) override {
        return inner_->submit(std::move(request), std::move(callbacks));
    }
    void abort(uint64_t request) override { inner_->abort(request); }
    Result<std::vector<int32_t>> expand_prompt(const Request& request) const override {
        return inner_->expand_prompt(request);
    }
    const Tokenizer& tokenizer() const override { return inner_->tokenizer(); }
    const EngineConfig& config() const override { return inner_->config(); }
    const ModelInfo& model_info() const override { return inner_->model_info(); }
    EngineStats stats() const override { return inner_->stats(); }
    Result<int64_t> flush_prefix_cache() override { return inner_->flush_prefix_cache(); }

  private:
    const std::unique_ptr<InferenceBackend> inner_;
};

inline std::string base64(const std::string& bytes) {
    static constexpr char kDigits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (size_t i = 0; i < bytes.size(); i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; ++k)
            bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0U);
        for (size_t k = 0; k < 4; ++k)
            out.push_back(i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63]);
    }
    return out;
}

/// Data of the events of a stream, in order ("[DONE]" as it is).
inline std::vector<std::string> events_of(const std::string& body) {
    std::vector<std::string> out;
    EventReader reader;
    reader.feed(body, [&](std::string_view, std::string_view data) {
        out.emplace_back(data);
        return true;
    });
    return out;
}

}  // namespace deepinfer::server
