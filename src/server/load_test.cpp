// Many streams at once: no answer lost, none with a token more or less; memory and descriptors go
// back to where they were.
#include <dirent.h>

#include "server/server_test_util.h"

namespace deepinfer::server {
namespace {

int open_descriptors() {
    int n = 0;
    DIR* folder = opendir("/proc/self/fd");
    while (readdir(folder) != nullptr) ++n;
    closedir(folder);
    return n;
}

/// The text of an answer's events.
std::string text_of(const std::string& events) {
    std::string text;
    size_t at = 0;
    while (at < events.size()) {
        const size_t end = std::min(events.find('\n', at), events.size());
        const json event = json::parse(events.substr(at, end - at), nullptr, false);
        at = end + 1;
        if (!event.is_object() || !event.contains("choices")) continue;
        for (const json& choice : event["choices"])
            if (choice["delta"].contains("content") && choice["delta"]["content"].is_string())
                text += choice["delta"]["content"].get<std::string>();
    }
    return text;
}

TEST(Load, EveryStreamIsWholeAndExact) {
    const Tokenizer tokenizer = Tokenizer::load(demo_dir()).value();
    constexpr int64_t kTokens = 24;
    std::vector<int32_t> ids;
    for (int word = 0; static_cast<int64_t>(ids.size()) < kTokens; ++word)
        for (const int32_t id : tokenizer.encode("w" + std::to_string(word) + " "))
            if (static_cast<int64_t>(ids.size()) < kTokens) ids.push_back(id);
    const std::string expected = tokenizer.decode(ids).value();

    const TestServer server({.finish_with_eos = false, .max_num_seqs = 64, .step_us = 200});
    for (const bool keep_alive : {true, false}) {
        const int before = open_descriptors();
        LoadOptions load;
        load.url = parse_http_url(server.server->url()).value();
        load.bodies = {
            TestServer::chat(
                {{"stream", true}, {"max_tokens", kTokens}, {"thinking", {{"type", "disabled"}}}})
                .dump()};
        load.streams = 64;
        load.requests = 300;
        load.keep_alive = keep_alive;
        load.check = [&](int64_t, int status, const std::string& body) -> std::string {
            if (status != 200) return "status " + std::to_string(status);
            if (body.find("[DONE]") == std::string::npos) return "no end";
            return text_of(body) == expected ? "" : "the text differs: " + text_of(body);
        };
        const LoadReport report = run_load(load).value();
        EXPECT_EQ(report.ok, 300);
        EXPECT_EQ(report.failed, 0) << (report.faults.empty() ? "" : report.faults[0]);
        EXPECT_TRUE(server.reaches([](const json& s) {
            return s["http"]["connections"] == 1 && s["generation"]["open"] == 0;
        })) << server.status();
        EXPECT_LE(open_descriptors(), before + 2);
    }
    EXPECT_EQ(server.status()["generation"]["generation_tokens"], 600 * kTokens);
    EXPECT_EQ(server.status()["generation"]["aborts"], 0);
}

TEST(Store, IsBoundedInTurnsBytesAndAge) {
    ServerConfig config;
    config.limits.stored_turns = 3;
    config.limits.stored_turns_per_key = 2;
    const TestServer server({.text = "</think>ok"}, config);
    std::vector<std::string> ids;
    for (int i = 0; i < 3; ++i)
        ids.push_back(
            server.post("/v1/responses", {{"model", "nano"}, {"input", "x"}}).parsed()["id"]);
    EXPECT_EQ(server.get("/v1/responses/" + ids[0]).status, 404);
    EXPECT_EQ(server.get("/v1/responses/" + ids[1]).status, 200);
    EXPECT_EQ(server.status()["stored_responses"]["turns"], 2);
    config.limits.stored_turns = 0;
    const TestServer none({.text = "</think>ok"}, config);
    const HttpResult r = none.post(
        "/v1/responses", {{"model", "nano"}, {"input", "x"}, {"previous_response_id", "resp_1"}});
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(r.parsed()["error"]["param"], "previous_response_id");
}

TEST(Urls, AreReadStrictly) {
    const HttpUrl url = parse_http_url("https://host:8443/base/").value();
    EXPECT_TRUE(url.tls);
    EXPECT_EQ(url.host, "host");
    EXPECT_EQ(url.port, 8443);
    EXPECT_EQ(url.path, "/base");
    EXPECT_EQ(parse_http_url("http://[::1]:80").value().host, "::1");
    EXPECT_EQ(parse_http_url("https://a").value().port, 443);
    for (const char* wrong : {"",
                              "host",
                              "ftp://a",
                              "http://",
                              "http://a:0",
                              "http://a:99999",
                              "http://a:x",
                              "http://u@a",
                              "http://[::1",
                              "http://a b"})
        EXPECT_FALSE(parse_http_url(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace deepinfer::server
