// Pictures in requests, with a scripted model that counts them as the released one does: the cases
// C-080, C-081 and C-085, limits, and everything that may not be fetched.
#include <arpa/inet.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "server/picture_fetch.h"
#include "server/server_test_util.h"
#include "support/case_file.h"
#include "support/golden_file.h"
#include "support/vision_geometry.h"

namespace deepinfer::server {
namespace {

/// The released vocabulary, unpacked beside the other things of the build.
const std::string& released_tokenizer() {
    static const std::string dir = [] {
        const std::string out = ::testing::TempDir() + "deepinfer_released_tokenizer";
        std::filesystem::create_directories(out);
        const std::string packed = testing::data_path("tokenizer/tokenizer.json.gz");
        const std::string command = "gzip -dc '" + packed + "' > '" + out + "/tokenizer.json." +
                                    std::to_string(getpid()) + "' && mv '" + out +
                                    "/tokenizer.json." + std::to_string(getpid()) + "' '" + out +
                                    "/tokenizer.json'";
        if (std::system(command.c_str()) != 0) std::abort();
        return out;
    }();
    return dir;
}

/// The header of a PNG of this size: all that planning reads.
std::string png_header(uint32_t width, uint32_t height) {
    std::string out("\x89PNG\r\n\x1a\n\0\0\0\x0DIHDR", 16);
    for (const uint32_t n : {width, height})
        for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(n >> shift));
    out += std::string("\x08\x02\0\0\0", 5) + std::string(16, 'x');
    return out;
}

std::string data_url(const std::string& bytes) {
    return "data:image/png;base64," + base64(bytes);
}

/// A server whose model takes pictures, in the released one's sizes.
class PictureServer {
  public:
    explicit PictureServer(ServerConfig config = {},
                           bool takes = true,
                           const std::string& tokenizer_dir = demo_dir()) {
        config.port = config.admin_port = 0;
        config.served_model_names = {"nano"};
        config.log_file = "/dev/null";
        server_ = Server::start(config).value();
        ScriptedBackendOptions script;
        script.tokenizer_dir = tokenizer_dir;
        script.text = "</think>ok";
        script.max_model_len = 100'000;
        if (takes)
            script.image_tokens = [](const ImageInput& image) -> Result<int64_t> {
                const Result<ImagePlan> plan = plan_input(image, testing::released_vision(), 8192);
                if (!plan.ok()) return plan.status();
                return plan->num_tokens();
            };
        server_->attach(scripted_backend(script).value());
    }
    HttpResult post(const std::string& path, const json& body) const {
        return call(server_->port(), "POST", path, body.dump());
    }
    HttpResult chat(const json& content, json more = json::object()) const {
        return post("/v1/chat/completions", user(content, std::move(more)));
    }
    static json user(const json& content, json more = json::object()) {
        more["messages"] = json::array({{{"role", "user"}, {"content", content}}});
        more["thinking"] = {{"type", "disabled"}};
        return TestServer::chat(std::move(more));
    }
    int64_t prompt_tokens(const json& content) const {
        const HttpResult r = chat(content);
        EXPECT_EQ(r.status, 200) << r.body;
        return r.parsed()["usage"]["prompt_tokens"];
    }
    int port() const { return server_->port(); }
    int64_t held_body_bytes() const {
        return call(server_->admin_port(), "GET", "/admin/status")
            .parsed()["http"]["held_body_bytes"];
    }
    bool reaches_no_bodies() const {
        for (int i = 0; i < 500 && held_body_bytes() != 0; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return held_body_bytes() == 0;
    }

  private:
    std::unique_ptr<Server> server_;
};

json text_part(const std::string& text) {
    return {{"type", "text"}, {"text", text}};
}
json image_part(const std::string& url, const std::string& detail = "") {
    json image = {{"url", url}};
    if (!detail.empty()) image["detail"] = detail;
    return {{"type", "image_url"}, {"image_url", image}};
}

TEST(ServerPictures, C080EveryPictureCounts) {
    // The specification's numbers are those of the released vocabulary.
    const PictureServer server({}, true, released_tokenizer());
    const int64_t plain = server.prompt_tokens("What is this?");
    int num_run = 0;
    for (const json& row : testing::case_rows("vision.json", "C-080")) {
        const json& in = row["in"];
        SCOPED_TRACE(in.dump());
        if (in.contains("checkpoint")) {
            // Both kinds of checkpoint give an engine without a tower (engine tests).
            const PictureServer blind({}, false);
            const HttpResult r = blind.chat(json::array(
                {text_part("What is this?"), image_part(data_url(png_header(20, 16)))}));
            EXPECT_EQ(r.status, row["want"]["status"]);
            EXPECT_NE(r.body.find("takes no pictures"), std::string::npos) << r.body;
            ++num_run;
            continue;
        }
        json content = json::array({text_part("What is this?")});
        const json sizes = in.contains("sizes") ? in["sizes"] : json::array({in["size"]});
        for (const json& size : sizes)
            content.push_back(
                image_part(data_url(png_header(size[0], size[1])), in.value("detail", "")));
        if (row["want"].contains("status")) {
            const HttpResult r = server.chat(content);
            EXPECT_EQ(r.status, row["want"]["status"]) << r.body;
            EXPECT_EQ(r.parsed()["error"]["param"], "messages");
        } else {
            EXPECT_EQ(server.prompt_tokens(content) - plain, row["want"]["prompt_tokens_delta"]);
        }
        ++num_run;
    }
    EXPECT_EQ(num_run, 7);
}

TEST(ServerPictures, EveryProtocolCountsTheSame) {
    const PictureServer server;
    const std::string url = data_url(png_header(640, 480));
    const json content = json::array({text_part("What is this?"), image_part(url)});
    const int64_t chat = server.prompt_tokens(content);
    const json anthropic = json::array({text_part("What is this?"),
                                        {{"type", "image"},
                                         {"source",
                                          {{"type", "base64"},
                                           {"media_type", "image/png"},
                                           {"data", base64(png_header(640, 480))}}}}});
    const json messages = json::array({{{"role", "user"}, {"content", anthropic}}});
    json body = {{"model", "nano"},
                 {"max_tokens", 9},
                 {"messages", messages},
                 {"thinking", {{"type", "disabled"}}}};
    const HttpResult message = server.post("/v1/messages", body);
    ASSERT_EQ(message.status, 200) << message.body;
    EXPECT_EQ(message.parsed()["usage"]["input_tokens"], chat);
    EXPECT_EQ(server.post("/v1/messages/count_tokens", body).parsed()["input_tokens"], chat);
    const json parts = json::array({{{"type", "input_text"}, {"text", "What is this?"}},
                                    {{"type", "input_image"}, {"image_url", url}}});
    const HttpResult response =
        server.post("/v1/responses",
                    {{"model", "nano"},
                     {"input", json::array({{{"role", "user"}, {"content", parts}}})},
                     {"reasoning", {{"effort", "none"}}}});
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.parsed()["usage"]["input_tokens"], chat);
    const json tokens = server.post("/tokenize", PictureServer::user(content)).parsed();
    EXPECT_EQ(tokens["count"], chat);
    EXPECT_EQ(tokens["tokens"].size(), static_cast<size_t>(chat));
    // Streamed: the same usage, and an event stream.
    const HttpResult streamed = server.chat(content, {{"stream", true}});
    EXPECT_EQ(streamed.field("content-type"), "text/event-stream");
    EXPECT_NE(streamed.body.find("\"prompt_tokens\": " + std::to_string(chat)), std::string::npos);
}

TEST(ServerPictures, C081PicturesOfToolResults) {
    const PictureServer server;
    const std::string url = data_url(png_header(640, 480));
    const json tool_call = {{"id", "call_1"},
                            {"type", "function"},
                            {"function", {{"name", "shot"}, {"arguments", "{}"}}}};
    const auto chat = [&](const json& content) {
        const json history =
            json::array({{{"role", "user"}, {"content", "look"}},
                         {{"role", "assistant"},
                          {"content", nullptr},
                          {"tool_calls", json::array({tool_call})}},
                         {{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", content}}});
        return server.post(
            "/v1/chat/completions",
            {{"model", "nano"}, {"messages", history}, {"thinking", {{"type", "disabled"}}}});
    };
    const json rows = testing::case_rows("vision.json", "C-081");
    ASSERT_EQ(rows.size(), 5u);
    // <tool_result>shot:\n\n[span]</tool_result>: the text alone, and "\n\n" joins its last token.
    const int64_t text = chat("shot:").parsed()["usage"]["prompt_tokens"];
    const HttpResult shown = chat(json::array({text_part("shot:"), image_part(url)}));
    ASSERT_EQ(shown.status, 200) << shown.body;
    const int64_t with = shown.parsed()["usage"]["prompt_tokens"];
    EXPECT_GE(with - text, 206);
    EXPECT_LE(with - text, 207);
    EXPECT_LT(with, 300);
    const HttpResult response = server.post(
        "/v1/responses",
        {{"model", "nano"},
         {"reasoning", {{"effort", "none"}}},
         {"input",
          json::array(
              {{{"type", "message"}, {"role", "user"}, {"content", "look"}},
               {{"type", "function_call"},
                {"call_id", "c1"},
                {"name", "shot"},
                {"arguments", "{}"}},
               {{"type", "function_call_output"},
                {"call_id", "c1"},
                {"output", json::array({{{"type", "input_image"}, {"image_url", url}}})}}})}});
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_GT(response.parsed()["usage"]["input_tokens"], 206);
    EXPECT_LT(response.parsed()["usage"]["input_tokens"], 300);
    const json image = {{"type", "image"},
                        {"source",
                         {{"type", "base64"},
                          {"media_type", "image/png"},
                          {"data", base64(png_header(640, 480))}}}};
    const json use = {
        {"type", "tool_use"}, {"id", "t1"}, {"name", "shot"}, {"input", json::object()}};
    const json result = {
        {"type", "tool_result"}, {"tool_use_id", "t1"}, {"content", json::array({image})}};
    const HttpResult message =
        server.post("/v1/messages",
                    {{"model", "nano"},
                     {"max_tokens", 9},
                     {"thinking", {{"type", "disabled"}}},
                     {"messages",
                      json::array({{{"role", "user"}, {"content", "look"}},
                                   {{"role", "assistant"}, {"content", json::array({use})}},
                                   {{"role", "user"}, {"content", json::array({result})}}})}});
    ASSERT_EQ(message.status, 200) << message.body;
    EXPECT_GT(message.parsed()["usage"]["input_tokens"], 206);
    EXPECT_LT(message.parsed()["usage"]["input_tokens"], 300);
    // A data URL in a string is text: its characters are counted.
    const std::string long_url = data_url(png_header(640, 480) + std::string(3000, 'y'));
    EXPECT_GT(chat(long_url).parsed()["usage"]["prompt_tokens"], 1000);
    const HttpResult system = server.post(
        "/v1/chat/completions",
        {{"model", "nano"},
         {"messages",
          json::array({{{"role", "system"}, {"content", json::array({image_part(url)})}},
                       {{"role", "user"}, {"content", "hi"}}})}});
    EXPECT_EQ(system.status, rows[4]["want"]["status"]);
}

TEST(ServerPictures, LimitsAtAndOver) {
    ServerConfig config;
    config.limits.images = 2;
    config.limits.image_bytes = 1000;
    config.limits.request_image_bytes = 1500;
    config.limits.json_string_bytes = 1024;  // a picture's text may be longer
    const PictureServer server(config);
    const auto sized = [](size_t bytes) {
        std::string png = png_header(20, 16);
        png.resize(bytes, 'z');
        return image_part(data_url(png));
    };
    EXPECT_EQ(server.chat(json::array({sized(1000)})).status, 200);
    EXPECT_EQ(server.chat(json::array({sized(1001)})).status, 400);
    EXPECT_EQ(server.chat(json::array({sized(1000), sized(500)})).status, 200);
    const HttpResult together = server.chat(json::array({sized(1000), sized(501)}));
    EXPECT_EQ(together.status, 400);
    EXPECT_NE(together.body.find("picture 2"), std::string::npos) << together.body;
    EXPECT_NE(together.body.find("1501"), std::string::npos) << together.body;
    EXPECT_EQ(server.chat(json::array({sized(40), sized(40), sized(40)})).status, 400);
    EXPECT_EQ(server.chat(json::array({sized(1400)})).status, 400);  // text of 1,890 bytes
    EXPECT_EQ(server.chat(std::string(1025, 'a')).status, 400);      // other strings keep theirs
    EXPECT_EQ(server.chat(std::string(1024, 'a')).status, 200);
    for (const auto& [width, height, status] :
         {std::array<int, 3>{8192, 10, 200}, {8193, 10, 400}, {10, 8192, 200}, {10, 8193, 400}}) {
        const HttpResult r = server.chat(json::array({image_part(
            data_url(png_header(static_cast<uint32_t>(width), static_cast<uint32_t>(height))))}));
        EXPECT_EQ(r.status, status) << r.body;
        if (status == 400) {
            EXPECT_TRUE(r.parsed()["error"]["code"].is_null()) << "not the context's length";
        }
    }
}

TEST(ServerPictures, WhatIsNoPictureIsRefused) {
    const PictureServer server;
    for (const std::string& bytes : {std::string(),
                                     std::string("<svg/>"),
                                     std::string("\x89PNG\r\n\x1a\n"),
                                     png_header(0, 5)}) {
        for (const bool stream : {false, true}) {
            const HttpResult r =
                server.chat(json::array({image_part(data_url(bytes))}), {{"stream", stream}});
            EXPECT_EQ(r.status, 400) << r.body;
            EXPECT_EQ(r.field("content-type"), "application/json");
            EXPECT_EQ(r.parsed()["error"]["type"], "invalid_request_error");
        }
    }
}

// ------------------------------------------------------------------ URLs

/// A host on this machine that answers by path and counts the questions.
class Origin {
  public:
    Origin() {
        fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
            ::listen(fd_, 16) != 0 ||
            ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
            std::abort();
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this] { run(); });
    }
    ~Origin() {
        stopping_ = true;
        ::shutdown(fd_, SHUT_RDWR);
        thread_.join();
        for (std::thread& t : workers_) t.join();
        ::close(fd_);
    }
    int port() const { return port_; }
    std::string host() const { return "127.0.0.1:" + std::to_string(port_); }
    std::string url(const std::string& path) const { return "http://" + host() + path; }
    int hits() const { return hits_; }
    int64_t sent() const { return sent_; }

  private:
    void run() {
        for (;;) {
            const int client = ::accept(fd_, nullptr, nullptr);
            if (client < 0) return;
            workers_.emplace_back([this, client] {
                answer(client);
                ::close(client);
            });
        }
    }
    bool send(int client, const std::string& bytes) {
        const bool ok = ::send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                        static_cast<ssize_t>(bytes.size());
        if (ok) sent_ += static_cast<int64_t>(bytes.size());
        return ok;
    }
    void answer(int client) {
        std::string head;
        char buffer[4096];
        while (head.find("\r\n\r\n") == std::string::npos) {
            const ssize_t n = ::recv(client, buffer, sizeof buffer, 0);
            if (n <= 0) return;
            head.append(buffer, static_cast<size_t>(n));
        }
        ++hits_;
        const std::string path = head.substr(4, head.find(' ', 4) - 4);
        const auto status = [&](const std::string& line, const std::string& fields = "") {
            send(client, "HTTP/1.1 " + line + "\r\n" + fields + "Content-Length: 0\r\n\r\n");
        };
        if (path.rfind("/to/", 0) == 0)
            return status("302 Found", "Location: " + path.substr(4) + "\r\n");
        if (path.rfind("/hops/", 0) == 0) {
            const int left = std::stoi(path.substr(6));
            return status(
                "307 Moved",
                "location: " +
                    (left > 1 ? "/hops/" + std::to_string(left - 1) : std::string("/good.png")) +
                    "\r\n");
        }
        if (path.rfind("/status/", 0) == 0) return status(path.substr(8) + " X");
        if (path == "/good.png") {
            const std::string png = png_header(42, 42);
            send(client,
                 "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: " +
                     std::to_string(png.size()) + "\r\n\r\n" + png);
        } else if (path == "/endless") {
            if (!send(client, "HTTP/1.1 200 OK\r\n\r\n" + png_header(42, 42))) return;
            while (!stopping_ && send(client, std::string(16384, 'e'))) continue;
        } else if (path == "/slow") {
            if (!send(client, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")) return;
            for (int i = 0; i < 100 && !stopping_ && send(client, "s"); ++i)
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
        } else if (path == "/short") {
            send(client, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort");
        } else if (path == "/text") {
            send(client, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nsecret-word");
        } else {
            send(client, "nonsense\r\n\r\n");
        }
    }

    int fd_ = -1;
    int port_ = 0;
    std::atomic<bool> stopping_{false};
    std::atomic<int> hits_{0};
    std::atomic<int64_t> sent_{0};
    std::thread thread_;
    std::vector<std::thread> workers_;
};

ServerConfig fetching(const Origin& origin) {
    ServerConfig config;
    config.image_urls = true;
    config.image_url_private_hosts = {origin.host()};
    config.limits.image_url_timeout_ms = 1500;
    config.limits.image_bytes = 200'000;
    return config;
}

int64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    int64_t pages = 0, resident = 0;
    file >> pages >> resident;
    return resident * 4096;
}

TEST(ServerPictures, C085NothingInsideIsFetched) {
    Origin origin;
    Origin inner;  // on this machine, and nobody has said that it may be asked
    const PictureServer off;
    const PictureServer on(fetching(origin));
    int num_run = 0;
    for (const json& row : testing::case_rows("server.json", "C-085")) {
        const json& in = row["in"];
        const json& want = row["want"];
        SCOPED_TRACE(in.dump());
        const int before = origin.hits();
        if (in.contains("image_url")) {
            std::string url = in["image_url"];
            if (const size_t at = url.find("PORT"); at != std::string::npos)
                url.replace(at, 4, std::to_string(inner.port()));
            const bool is_on = in["fetch"] == "on";
            const HttpResult r = (is_on ? on : off).chat(json::array({image_part(url)}));
            EXPECT_EQ(r.status, want["status"]) << r.body;
            EXPECT_EQ(inner.hits(), 0);
            EXPECT_EQ(origin.hits(), before);
        } else if (in.contains("png_header_says")) {
            const int64_t rss = resident_bytes();
            std::string png = png_header(in["png_header_says"][0], in["png_header_says"][1]);
            png.resize(in["bytes"]);
            EXPECT_EQ(on.chat(json::array({image_part(data_url(png))})).status, want["status"]);
            EXPECT_LT(resident_bytes() - rss, want["rss_growth_mb_below"].get<int64_t>() << 20);
        } else {
            std::string path;
            const std::string what = in.value("server_on_allowed_test_host", "");
            if (what == "a good 42x42 PNG") path = "/good.png";
            if (what == "endless body") path = "/endless";
            if (what == "1 byte per second") path = "/slow";
            if (in.contains("status_of_upstream"))
                path = "/status/" + std::to_string(in["status_of_upstream"].get<int>());
            ASSERT_FALSE(path.empty());
            const int64_t sent = origin.sent();
            const auto begin = std::chrono::steady_clock::now();
            const HttpResult r = on.chat(json::array({image_part(origin.url(path))}));
            const double seconds =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            if (what == "1 byte per second") {
                EXPECT_EQ(r.status, 500) << r.body;
                EXPECT_LT(seconds, 5);
            } else {
                EXPECT_EQ(r.status, want["status"]) << r.body;
            }
            EXPECT_EQ(origin.hits(), before + 1);
            if (path == "/endless") {
                // The limit, what one read takes, and what lies in the two sockets.
                EXPECT_LT(origin.sent() - sent, 200'000 + (8 << 20));
            }
        }
        ++num_run;
    }
    EXPECT_EQ(num_run, 17);
    EXPECT_EQ(on.chat("hi").status, 200);
}

TEST(ServerPictures, FetchedPicturesAreLikeSentOnes) {
    Origin origin;
    const PictureServer server(fetching(origin));
    const json fetched = json::array({text_part("a"), image_part(origin.url("/good.png"))});
    const json sent = json::array({text_part("a"), image_part(data_url(png_header(42, 42)))});
    EXPECT_EQ(server.prompt_tokens(fetched), server.prompt_tokens(sent));
    const HttpResult streamed = server.chat(fetched, {{"stream", true}});
    EXPECT_EQ(streamed.status, 200);
    EXPECT_EQ(streamed.field("content-type"), "text/event-stream");
    EXPECT_EQ(events_of(streamed.body).back(), "[DONE]");
    const json source = {{"type", "url"}, {"url", origin.url("/good.png")}};
    const json block = {{"type", "image"}, {"source", source}};
    const json body = {
        {"model", "nano"},
        {"max_tokens", 5},
        {"messages", json::array({{{"role", "user"}, {"content", json::array({block})}}})}};
    EXPECT_GT(server.post("/v1/messages/count_tokens", body).parsed()["input_tokens"], 150);
    EXPECT_EQ(server.post("/v1/messages", body).status, 200);
    // Errors of a stream that has not begun are answers, and say nothing of what was read.
    for (const auto& [path, status] : std::vector<std::pair<std::string, int>>{{"/status/404", 400},
                                                                               {"/status/503", 500},
                                                                               {"/text", 400},
                                                                               {"/short", 500},
                                                                               {"/no-http", 500}}) {
        for (const bool stream : {false, true}) {
            const HttpResult r =
                server.chat(json::array({image_part(origin.url(path))}), {{"stream", stream}});
            EXPECT_EQ(r.status, status) << path << r.body;
            EXPECT_EQ(r.field("content-type"), "application/json");
            EXPECT_EQ(r.body.find("secret-word"), std::string::npos);
        }
    }
}

TEST(ServerPictures, RedirectsAreCheckedLikeTheFirstAddress) {
    Origin origin;
    Origin inner;
    const PictureServer server(fetching(origin));
    const auto status = [&](const std::string& path) {
        return server.chat(json::array({image_part(origin.url(path))})).status;
    };
    EXPECT_EQ(status("/to//good.png"), 200) << "a path of the same host";
    EXPECT_EQ(status("/to///" + inner.host() + "/good.png"), 400) << "another host, same scheme";
    EXPECT_EQ(status("/to/" + origin.url("/good.png")), 200);
    EXPECT_EQ(status("/hops/3"), 200);
    EXPECT_EQ(status("/hops/4"), 400);
    for (const std::string& to : {inner.url("/good.png"),
                                  "http://localhost:" + std::to_string(origin.port()) + "/good.png",
                                  "http://[::1]:" + std::to_string(inner.port()) + "/good.png",
                                  "http://[::ffff:127.0.0.1]:" + std::to_string(inner.port()) + "/",
                                  std::string("http://169.254.169.254/"),
                                  std::string("file:///etc/hostname"),
                                  std::string("ftp://127.0.0.1/x"),
                                  std::string("gopher://127.0.0.1/"),
                                  std::string("http:")}) {
        EXPECT_EQ(status("/to/" + to), 400) << to;
    }
    EXPECT_EQ(inner.hits(), 0);
}

TEST(ServerPictures, OnlyListedHostsWhereThereIsAList) {
    Origin origin;
    ServerConfig config = fetching(origin);
    config.image_url_hosts = {"pictures.example"};
    const PictureServer server(config);
    EXPECT_EQ(server.chat(json::array({image_part(origin.url("/good.png"))})).status, 400);
    EXPECT_EQ(origin.hits(), 0);
    config.image_url_hosts = {"pictures.example", "127.0.0.1"};
    const PictureServer listed(config);
    EXPECT_EQ(listed.chat(json::array({image_part(origin.url("/good.png"))})).status, 200);
}

TEST(ServerPictures, FetchedBytesCountAgainstTheBudgetOfBodies) {
    Origin origin;
    ServerConfig config = fetching(origin);
    const int64_t room = config.limits.held_body_bytes = 20'000;
    config.limits.image_url_timeout_ms = 20'000;
    const PictureServer server(config);
    // One that comes by drops is held as far as it has come, beside its own short body.
    RawSocket slow(server.port());
    slow.send(
        request_text("POST",
                     "/v1/chat/completions",
                     PictureServer::user(json::array({image_part(origin.url("/slow"))})).dump()));
    int64_t first = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (std::chrono::steady_clock::now() < end) {
        const int64_t held = server.held_body_bytes();
        if (first == 0) first = held;
        if (first > 0 && held > first) break;
    }
    EXPECT_GT(server.held_body_bytes(), first);
    // One that has more than there is ends with "try again".
    const HttpResult r = server.chat(json::array({image_part(origin.url("/endless"))}));
    EXPECT_EQ(r.status, 503) << r.body;
    EXPECT_EQ(r.field("retry-after"), "1");
    EXPECT_LE(server.held_body_bytes(), room);
    slow.reset();
    EXPECT_EQ(server.chat(json::array({image_part(origin.url("/good.png"))})).status, 200);
    EXPECT_TRUE(server.reaches_no_bodies());
}

TEST(ServerPictures, AClientThatLeavesEndsItsFetch) {
    Origin origin;
    ServerConfig config = fetching(origin);
    config.limits.image_url_timeout_ms = 60'000;
    const PictureServer server(config);
    const auto begin = std::chrono::steady_clock::now();
    // All fetchers are busy with slow ones whose clients have gone …
    for (int i = 0; i < 16; ++i) {
        RawSocket socket(server.port());
        socket.send(request_text(
            "POST",
            "/v1/chat/completions",
            PictureServer::user(json::array({image_part(origin.url("/slow"))})).dump()));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    // … and still the next one gets its picture soon.
    EXPECT_EQ(server.chat(json::array({image_part(origin.url("/good.png"))})).status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
}

TEST(PictureFetch, HostileUrlsReachNobody) {
    Origin inner;
    FetchRules rules;
    rules.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const std::string port = ":" + std::to_string(inner.port());
    const std::vector<std::string> urls = {
        "http://127.1" + port + "/good.png",
        "http://2130706433" + port + "/good.png",
        "http://0x7f000001" + port + "/good.png",
        "http://0x7f.0.0.1" + port + "/good.png",
        "http://0177.0.0.1" + port + "/good.png",
        "http://0" + port + "/good.png",
        "http://LOCALHOST" + port + "/good.png",
        "HTTP://127.0.0.1" + port + "/good.png",
        "http://[::ffff:127.0.0.1]" + port + "/good.png",
        "http://[::ffff:7f00:1]" + port + "/good.png",
        "http://[0:0:0:0:0:0:0:1]" + port + "/good.png",
        "http://[::]" + port + "/good.png",
        "http://[::1%25lo]" + port + "/good.png",
        "http://user@127.0.0.1" + port + "/good.png",
        "http://8.8.8.8@127.0.0.1" + port + "/good.png",
        "http://127.0.0.1" + port + "\\@8.8.8.8/",
        "http://8.8.8.8\\@127.0.0.1" + port + "/",
        "http://8.8.8.8#@127.0.0.1:99999/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:65536/",
        "http://127.0.0.1:8 0/",
        "http://127.0.0.1" + port + "/a\r\nhost: x",
        "http:///good.png",
        "http://",
        "http:127.0.0.1",
        "https:/127.0.0.1/",
        "http://[127.0.0.1]/",
        "http://[::1/",
        "http://ex%61mple/",
        "http://\xE2\x91\xA0\xE2\x91\xA1\xE2\x91\xA6.0.0.1/",
        "javascript://127.0.0.1/",
        "unix:/run/x",
        std::string(),
        "http://a/" + std::string(9000, 'x'),
    };
    for (const std::string& url : urls) {
        // What the parser takes for 8.8.8.8 would be asked: not from a test.
        if (url.find("8.8.8.8#") != std::string::npos) {
            EXPECT_EQ(parse_fetch_url(url).value().host, "8.8.8.8");
            continue;
        }
        const FetchResult r = fetch_picture(url, rules);
        EXPECT_EQ(r.fault, 400) << url << " " << r.message;
        EXPECT_TRUE(r.body.empty());
    }
    EXPECT_EQ(inner.hits(), 0);
}

}  // namespace
}  // namespace deepinfer::server
