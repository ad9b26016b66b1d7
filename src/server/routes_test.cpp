// The route table: nothing answers without a key but what is meant to.
#include "server/routes.h"

#include <fstream>
#include <set>

#include "server/api_keys.h"
#include "server/assets.h"
#include "server/server_test_util.h"

namespace deepinfer::server {
namespace {

// sha256 of "secret", "admin-secret", "metrics-secret", "old-secret"
constexpr const char* kKeys = R"(keys:
  - id: alice
    sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b
    tenant: team-a
    scopes: [infer]
  - id: root
    sha256: 16175223c8ddce5ace0493c948569c211b03c4c6bb3d3e484434999448cffe01
    scopes: [admin, infer]
  - id: prometheus
    sha256: d31c4153216654104062c2381a35a508ce65581c2abea7770a7cfd76c92e828e
    scopes: [metrics]
)";

std::string sample_path(std::string_view pattern) {
    const size_t brace = pattern.find('{');
    return std::string(pattern.substr(0, brace)) + (brace == std::string_view::npos ? "" : "some");
}

class Keyed : public testing::Test {
  protected:
    void SetUp() override {
        path_ = testing::TempDir() + "/keys_" + std::to_string(getpid()) + ".yaml";
        write(kKeys);
    }
    void TearDown() override { std::remove(path_.c_str()); }
    void write(const std::string& text) const { std::ofstream(path_) << text; }
    ServerConfig config() const {
        ServerConfig out;
        out.api_keys = path_;
        return out;
    }
    std::string path_;
};

TEST_F(Keyed, EveryRouteWithoutAKeyIsRefusedSaveThePublicOnes) {
    const TestServer server({}, config());
    std::set<std::string> open;
    for (const Route& route : routes()) {
        for (const Plane plane : {kPlanePublic, kPlaneAdmin}) {
            if ((route.planes & plane) == 0) continue;
            const int port = plane == kPlanePublic ? server.port() : server.server->admin_port();
            const std::string path = sample_path(route.path);
            const HttpResult r =
                call(port, std::string(route.method), path, route.body_bytes != 0 ? "{}" : "");
            if (route.access == Access::kPublic) {
                open.insert(path);
                EXPECT_NE(r.status, 401) << path;
                continue;
            }
            EXPECT_EQ(r.status, 401) << route.method << " " << path;
            EXPECT_TRUE(r.parsed().contains("error")) << r.body;
            const HttpResult wrong =
                call(port, std::string(route.method), path, "", "Authorization: Bearer wrong\r\n");
            EXPECT_EQ(wrong.status, 401) << path;
        }
    }
    EXPECT_EQ(open,
              (std::set<std::string>{
                  "/", "/admin", "/web/some", "/health", "/ready", "/readyz", "/version"}));
    // Nor is it told which routes exist.
    EXPECT_EQ(server.get("/v1/nothing").status, 401);
    EXPECT_EQ(call(server.port(), "PUT", "/v1/chat/completions").status, 401);
}

TEST_F(Keyed, ScopesDecide) {
    const TestServer server({}, config());
    const std::string alice = "Authorization: Bearer secret\r\n";
    const std::string root = "X-Api-Key: admin-secret\r\n";
    EXPECT_EQ(server.get("/v1/models", alice).status, 200);
    EXPECT_EQ(server.get("/v1/models", "x-api-key: secret\r\n").status, 200);
    EXPECT_EQ(server.get("/v1/nothing", alice).status, 404);
    const int admin = server.server->admin_port();
    EXPECT_EQ(call(admin, "GET", "/metrics", "", alice).status, 403);
    EXPECT_EQ(call(admin, "GET", "/admin/status", "", alice).status, 403);
    EXPECT_EQ(call(admin, "GET", "/metrics", "", root).status, 200);
    EXPECT_EQ(call(admin, "GET", "/admin/status", "", root).status, 200);
    // Bearer wins over x-api-key.
    EXPECT_EQ(
        server.get("/v1/models", "Authorization: Bearer wrong\r\nX-Api-Key: secret\r\n").status,
        401);
}

TEST_F(Keyed, ReloadTakesNewKeysAndKeepsTheOldOnesOnAnError) {
    const TestServer server({}, config());
    const std::string alice = "Authorization: Bearer secret\r\n";
    write("keys: [");
    EXPECT_FALSE(server.server->reload().ok());
    EXPECT_EQ(server.get("/v1/models", alice).status, 200);
    write(
        "keys: [{id: root, sha256: "
        "16175223c8ddce5ace0493c948569c211b03c4c6bb3d3e484434999448cffe01, scopes: [infer]}]");
    EXPECT_TRUE(server.server->reload().ok());
    EXPECT_EQ(server.get("/v1/models", alice).status, 401);
    EXPECT_EQ(server.get("/v1/models", "X-Api-Key: admin-secret\r\n").status, 200);
}

TEST_F(Keyed, ExpiryAndLimitsOfAKeyHold) {
    write(
        "keys:\n- {id: old, scopes: [infer], expires: 2020-01-01, sha256: "
        "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b}\n"
        "- {id: two, scopes: [infer], requests_per_minute: 2, sha256: "
        "16175223c8ddce5ace0493c948569c211b03c4c6bb3d3e484434999448cffe01}\n");
    const TestServer server({}, config());
    EXPECT_EQ(server.get("/v1/models", "X-Api-Key: secret\r\n").status, 401);
    const std::string two = "X-Api-Key: admin-secret\r\n";
    EXPECT_EQ(server.get("/v1/models", two).status, 200);
    EXPECT_EQ(server.get("/v1/models", two).status, 200);
    const HttpResult third = server.get("/v1/models", two);
    EXPECT_EQ(third.status, 429);
    EXPECT_EQ(third.field("retry-after"), "30");
    EXPECT_EQ(third.parsed()["error"]["type"], "rate_limit_error");
}

TEST_F(Keyed, FilesThatAreWrongAreRefusedByEntry) {
    const auto fault = [&](const std::string& text) {
        write(text);
        const auto ring = KeyRing::load(path_);
        return ring.ok() ? std::string() : ring.status().message();
    };
    const std::string digest(64, 'a');
    EXPECT_NE(fault("keys: []"), "");
    EXPECT_NE(fault("[]"), "");
    EXPECT_NE(fault("keys:\n- {id: a, scopes: [infer], sha256: abc}").find("sha256"),
              std::string::npos);
    EXPECT_NE(fault("keys:\n- {id: a, sha256: " + digest + "}").find("scopes"), std::string::npos);
    EXPECT_NE(fault("keys:\n- {id: a, scopes: [fly], sha256: " + digest + "}").find("fly"),
              std::string::npos);
    EXPECT_NE(fault("keys:\n- {id: a, scopes: [infer], colour: red, sha256: " + digest + "}")
                  .find("colour"),
              std::string::npos);
    EXPECT_NE(fault("keys:\n- {id: a, scopes: [infer], sha256: " + digest +
                    "}\n- {id: a, scopes: [infer], sha256: " + digest + "}")
                  .find("twice"),
              std::string::npos);
    EXPECT_NE(fault("keys:\n- {id: a, expires: tomorrow, scopes: [infer], sha256: " + digest + "}")
                  .find("tomorrow"),
              std::string::npos);
    EXPECT_EQ(fault("keys:\n- {id: a, scopes: [infer], sha256: " + digest + "}"), "");
}

TEST(KeyUsage, CountsRequestsAtOnceAndByTheMinute) {
    KeyUsage usage;
    ApiKey key;
    key.id = "k";
    key.max_concurrent = 2;
    int retry = 0;
    EXPECT_EQ(usage.begin(key, 0, &retry), "");
    EXPECT_EQ(usage.begin(key, 0, &retry), "");
    EXPECT_NE(usage.begin(key, 0, &retry), "");
    usage.end(key);
    EXPECT_EQ(usage.begin(key, 0, &retry), "");
    ApiKey minute;
    minute.id = "m";
    minute.requests_per_minute = 60;
    for (int i = 0; i < 60; ++i) EXPECT_EQ(usage.begin(minute, 100, &retry), "") << i;
    EXPECT_NE(usage.begin(minute, 100, &retry), "");
    EXPECT_EQ(retry, 1);
    EXPECT_EQ(usage.begin(minute, 101, &retry), "");
}

TEST(Times, AreReadStrictly) {
    EXPECT_EQ(parse_utc("1970-01-02").value(), 86400);
    EXPECT_EQ(parse_utc("2027-06-30T12:00:00Z").value(), 1814356800);
    for (const char* wrong :
         {"", "2027", "2027-13-01", "2027-01-01T25:00:00Z", "2027-01-01T00:00:00", "2027-01-01 x"})
        EXPECT_FALSE(parse_utc(wrong).ok()) << wrong;
}

TEST(Configuration, BeyondLoopbackNeedsKeys) {
    ServerConfig config;
    EXPECT_TRUE(config.validate().ok());
    config.host = "0.0.0.0";
    EXPECT_NE(config.validate().message().find("--api-keys"), std::string::npos);
    config.insecure = true;
    EXPECT_TRUE(config.validate().ok());
    config.insecure = false;
    config.host = "127.0.0.2";
    EXPECT_TRUE(config.validate().ok());
    config.admin_host = "10.0.0.1";
    EXPECT_FALSE(config.validate().ok());
    config = {};
    config.tls_cert = "x";
    EXPECT_FALSE(config.validate().ok());
    for (const LimitOption& option : limit_options()) {
        config = {};
        config.limits.*option.field = option.low - 1;
        EXPECT_NE(config.validate().message().find(option.name), std::string::npos) << option.name;
        config.limits.*option.field = option.low;
        EXPECT_TRUE(config.validate().ok()) << option.name;
        config.limits.*option.field = option.high;
        EXPECT_TRUE(config.validate().ok()) << option.name;
        config.limits.*option.field = option.high + 1;
        EXPECT_FALSE(config.validate().ok()) << option.name;
    }
}

TEST(Pages, CarryTheirPolicyAndHoldNothingElse) {
    const TestServer server;
    const HttpResult page = server.get("/");
    EXPECT_EQ(page.status, 200);
    EXPECT_NE(page.field("content-security-policy").find("default-src 'none'"), std::string::npos);
    EXPECT_EQ(page.field("x-content-type-options"), "nosniff");
    EXPECT_EQ(server.get("/", "If-None-Match: " + page.field("etag") + "\r\n").status, 304);
    for (const EmbeddedFile& file : web_files()) {
        const HttpResult r = server.get("/web/" + std::string(file.name));
        EXPECT_EQ(r.status, 200) << file.name;
        EXPECT_EQ(r.body, file.bytes) << file.name;
    }
    for (const char* path : {"/web/../index.html", "/web/%2e%2e/x", "/web/", "/web/none.js"})
        EXPECT_EQ(server.get(path).status, 404) << path;
    EXPECT_EQ(call(server.port(), "HEAD", "/").body, "");
}

TEST(Origins, OtherSitesMayNotCall) {
    ServerConfig config;
    config.cors_origins = {"https://app.example"};
    const TestServer server({}, config);
    EXPECT_EQ(server.get("/v1/models", "Origin: https://evil.example\r\n").status, 403);
    EXPECT_EQ(server.get("/v1/models", "Origin: null\r\n").status, 403);
    EXPECT_EQ(server.get("/v1/models", "Origin: http://localhost\r\n").status, 200);
    const HttpResult listed = server.get("/v1/models", "Origin: https://app.example\r\n");
    EXPECT_EQ(listed.status, 200);
    EXPECT_EQ(listed.field("access-control-allow-origin"), "https://app.example");
    EXPECT_EQ(listed.field("access-control-allow-credentials"), "");
    const std::string ask = "Access-Control-Request-Method: POST\r\n";
    EXPECT_EQ(call(server.port(),
                   "OPTIONS",
                   "/v1/chat/completions",
                   "",
                   ask + "Origin: https://app.example\r\n")
                  .status,
              204);
    EXPECT_EQ(call(server.port(),
                   "OPTIONS",
                   "/v1/chat/completions",
                   "",
                   ask + "Origin: https://evil.example\r\n")
                  .status,
              403);
    // A name that another site resolved to this machine.
    RawSocket socket(server.port());
    socket.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    EXPECT_NE(socket.receive_all().find("403 Forbidden"), std::string::npos);
}

TEST(Loading, AnswersHealthAndSaysThatItLoads) {
    const TestServer server({.tokenizer_dir = "-"});
    EXPECT_EQ(server.get("/health").status, 200);
    const HttpResult ready = server.get("/ready");
    EXPECT_EQ(ready.status, 503);
    EXPECT_EQ(ready.parsed()["status"], "loading");
    const HttpResult chat = server.post("/v1/chat/completions", TestServer::chat());
    EXPECT_EQ(chat.status, 503);
    EXPECT_EQ(chat.field("retry-after"), "1");
    EXPECT_EQ(server.admin("/metrics").status, 200);
}

}  // namespace
}  // namespace deepinfer::server
