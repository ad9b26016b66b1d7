// What one tenant has, another does not see: stored turns, open requests. And bodies that say a
// thing twice.
#include <gtest/gtest.h>

#include <fstream>

#include "server/server_test_util.h"
#include "support/scratch_dir.h"

namespace deepinfer::server {
namespace {

// sha256 of "secret" and "admin-secret"
constexpr const char* kKeys = R"(keys:
- {id: one, scopes: [infer], sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b}
- {id: two, scopes: [infer], sha256: 16175223c8ddce5ace0493c948569c211b03c4c6bb3d3e484434999448cffe01}
)";
const std::string kOne = "x-api-key: secret\r\n", kTwo = "x-api-key: admin-secret\r\n";

class Tenants : public ::testing::Test {
  protected:
    ServerConfig config() {
        ServerConfig out;
        out.api_keys = scratch_.file("keys.yaml");
        std::ofstream(out.api_keys) << kKeys;
        return out;
    }
    HttpResult remove(const TestServer& server, const std::string& path, const std::string& key) {
        return call(server.port(), "DELETE", path, "", key);
    }

  private:
    const testing::ScratchDir scratch_;
};

TEST_F(Tenants, StoredTurnsBelongToTheirOwn) {
    const TestServer server({.text = "</think>ok"}, config());
    const HttpResult made =
        server.post("/v1/responses", {{"model", "nano"}, {"input", "hi"}}, kOne);
    ASSERT_EQ(made.status, 200) << made.body;
    const std::string id = made.parsed()["id"], path = "/v1/responses/" + id;
    EXPECT_EQ(server.get(path, kTwo).status, 404);
    EXPECT_EQ(remove(server, path, kTwo).status, 404);
    const json next = {{"model", "nano"}, {"input", "more"}, {"previous_response_id", id}};
    EXPECT_EQ(server.post("/v1/responses", next, kTwo).status, 404);
    EXPECT_EQ(server.get(path, kOne).status, 200);
    EXPECT_EQ(server.post("/v1/responses", next, kOne).status, 200);
    EXPECT_EQ(remove(server, path, kOne).status, 200);
    EXPECT_EQ(server.get(path, kOne).status, 404);
}

TEST_F(Tenants, OpenRequestsAreTakenBackByTheirOwn) {
    const TestServer server({.finish_with_eos = false, .step_us = 5000}, config());
    RawSocket open(server.port());
    open.send(request_text("POST",
                           "/v1/chat/completions",
                           TestServer::chat({{"stream", true}, {"max_tokens", 2000}}).dump(),
                           kOne));
    const std::string begun = open.receive_until("\"w");
    const size_t at = begun.find("x-request-id: ");
    ASSERT_NE(at, std::string::npos) << begun;
    const std::string rest = begun.substr(at + 14);
    const std::string path = "/v1/requests/" + rest.substr(0, rest.find("\r\n"));
    EXPECT_EQ(remove(server, path, kTwo).status, 404);
    EXPECT_FALSE(open.receive().empty());  // it goes on
    EXPECT_EQ(remove(server, path, kOne).status, 200);
    EXPECT_NE(open.receive_all().find("cancelled"), std::string::npos);
}

TEST(Bodies, WithAKeyTwiceAreRefusedEverywhere) {
    const TestServer server({.text = "</think>ok"});
    for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize"}) {
        const HttpResult r = call(
            server.port(),
            "POST",
            path,
            R"({"model":"nano","prompt":"a","prompt":"b","messages":[{"role":"user","content":"a"}]})");
        EXPECT_EQ(r.status, 400) << path << r.body;
        EXPECT_NE(r.body.find("twice"), std::string::npos) << r.body;
    }
}

}  // namespace
}  // namespace deepinfer::server
