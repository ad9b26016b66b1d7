// The doors in front of a real engine with the demonstration checkpoint: constraints in the words
// of every protocol, and pictures that turn out to be broken. Cases C-037, C-038, C-043, C-044.
#include <fstream>
#include <iterator>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "server/server_test_util.h"
#include "support/case_file.h"
#include "support/golden_file.h"

namespace deepinfer::server {
namespace {

/// One engine and server for all tests here: loading is most of their time.
class EngineDoors : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        register_ref_backends();
        register_cpu_backend();
        ServerConfig config;
        config.port = config.admin_port = 0;
        config.served_model_names = {"nano"};
        config.log_file = "/dev/null";
        server_ = Server::start(config).value().release();
        EngineConfig engine;
        engine.model_dir = demo_dir();
        engine.max_num_seqs = 8;
        engine.max_model_len = 1024;
        engine.threads = 2;
        Result<std::unique_ptr<Engine>> created = Engine::create(engine);
        if (!created.ok()) {
            ADD_FAILURE() << created.status().message();
            std::abort();
        }
        server_->attach(engine_backend(std::move(created).value()));
    }
    static void TearDownTestSuite() {
        delete server_;
        server_ = nullptr;
    }

    static HttpResult post(const std::string& path, const json& body) {
        return call(server_->port(), "POST", path, body.dump(), "", 60'000);
    }
    static json ask(const std::string& text, json more = json::object()) {
        more["messages"] = json::array({{{"role", "user"}, {"content", text}}});
        if (!more.contains("thinking")) more["thinking"] = {{"type", "disabled"}};
        return TestServer::chat(std::move(more));
    }
    static std::string content(const HttpResult& r) {
        EXPECT_EQ(r.status, 200) << r.body;
        const json answer = r.parsed();
        if (!answer.contains("choices")) return {};
        const json& text = answer["choices"][0]["message"]["content"];
        return text.is_string() ? text.get<std::string>() : std::string();
    }
    static json schema_format(const json& schema, bool strict = true) {
        return {{"type", "json_schema"},
                {"json_schema", {{"name", "n"}, {"schema", schema}, {"strict", strict}}}};
    }

    static Server* server_;
};
Server* EngineDoors::server_ = nullptr;

const json kVerdict = {{"type", "object"},
                       {"properties", {{"verdict", {{"enum", {"yes", "no"}}}}}},
                       {"required", {"verdict"}},
                       {"additionalProperties", false}};

bool is_verdict(const std::string& text) {
    const json value = json::parse(text, nullptr, false);
    return value == json{{"verdict", "yes"}} || value == json{{"verdict", "no"}};
}

TEST_F(EngineDoors, C037BadConstraintsAreThatRequestsFault) {
    const std::string alone =
        content(post("/v1/chat/completions", ask("Name three fruits.", {{"temperature", 0}})));
    int num_run = 0;
    for (const json& row : testing::case_rows("structured.json", "C-037")) {
        const json& in = row["in"];
        SCOPED_TRACE(in.dump().substr(0, 300));
        json more = json::object();
        if (in.contains("response_format")) {
            more["response_format"] = in["response_format"];
        } else if (in.contains("schema")) {
            more["response_format"] = schema_format(in["schema"]);
        } else if (in.contains("ebnf")) {
            more["structured_outputs"] = {{"grammar", in["ebnf"]}};
        } else {
            const std::string recipe = in["schema_recipe"];
            json schema;
            if (recipe.find("50000") != std::string::npos ||
                recipe.find("k49999") != std::string::npos) {
                for (int i = 0; i < 50000; ++i) schema["enum"].push_back("k" + std::to_string(i));
            } else if (recipe.find("2000 deep") != std::string::npos) {
                continue;  // the body's own depth limit: robustness tests
            } else {
                schema = {{"type", "object"}, {"additionalProperties", false}};
                for (int i = 0; i < 2000; ++i)
                    schema["properties"]["p" + std::to_string(i)] = {{"type", "integer"}};
            }
            more["response_format"] = schema_format(schema);
        }
        more["max_tokens"] = 40;
        const auto begin = std::chrono::steady_clock::now();
        const HttpResult r = post("/v1/chat/completions", ask("Answer as json.", more));
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        EXPECT_LT(seconds, 30);
        if (row["want"]["status"].is_number()) {
            EXPECT_EQ(r.status, row["want"]["status"]) << r.body.substr(0, 400);
        } else {
            EXPECT_TRUE(r.status == 200 || r.status == 400) << r.body.substr(0, 400);
        }
        if (r.status == 400) {
            const json error = r.parsed()["error"];
            EXPECT_EQ(error["type"], "invalid_request_error");
            if (error["code"] == "context_length_exceeded") {
                // The prompt shows the schema: 2,000 properties exceed this engine's context.
                ++num_run;
                continue;
            }
            EXPECT_EQ(error["param"],
                      in.contains("ebnf") ? "structured_outputs" : "response_format");
            EXPECT_EQ(error["message"].get<std::string>().find("so_args"), std::string::npos);
        }
        if (row["want"].contains("message_mentions")) {
            EXPECT_NE(r.body.find(row["want"]["message_mentions"].get<std::string>()),
                      std::string::npos);
        }
        ++num_run;
    }
    EXPECT_GE(num_run, 16);
    EXPECT_EQ(
        content(post("/v1/chat/completions", ask("Name three fruits.", {{"temperature", 0}}))),
        alone);
}

TEST_F(EngineDoors, RefusalsNameTheirPlace) {
    const json schema = {
        {"type", "object"},
        {"properties", {{"a", {{"type", "string"}, {"format", "no-such-format"}}}}}};
    const HttpResult strict =
        post("/v1/chat/completions",
             ask("Answer as json.", {{"response_format", schema_format(schema)}}));
    EXPECT_EQ(strict.status, 400) << strict.body;
    EXPECT_NE(strict.body.find("/properties/a"), std::string::npos) << strict.body;
    // Not strict: it is left out, and the answer says so.
    for (const bool stream : {false, true}) {
        const HttpResult loose = post("/v1/chat/completions",
                                      ask("Answer as json.",
                                          {{"response_format", schema_format(schema, false)},
                                           {"stream", stream},
                                           {"max_tokens", 60}}));
        ASSERT_EQ(loose.status, 200) << loose.body;
        const size_t at = loose.body.find("\"constraint_notes\": [");
        ASSERT_NE(at, std::string::npos) << loose.body;
        EXPECT_NE(loose.body.find("/properties/a", at), std::string::npos);
        EXPECT_EQ(loose.body.find("\"constraint_notes\"", at + 1), std::string::npos) << "once";
    }
    const json text = {
        {"format",
         {{"type", "json_schema"}, {"name", "n"}, {"schema", schema}, {"strict", false}}}};
    const HttpResult response = post("/v1/responses",
                                     {{"model", "nano"},
                                      {"input", "Answer as json."},
                                      {"text", text},
                                      {"max_output_tokens", 60},
                                      {"reasoning", {{"effort", "none"}}}});
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.parsed()["constraint_notes"].size(), 1u);
    for (const bool stream : {false, true}) {
        const HttpResult plain = post("/v1/completions",
                                      {{"model", "nano"},
                                       {"prompt", "json: "},
                                       {"stream", stream},
                                       {"max_tokens", 60},
                                       {"response_format", schema_format(schema, false)}});
        ASSERT_EQ(plain.status, 200) << plain.body;
        EXPECT_NE(plain.body.find("constraint_notes"), std::string::npos) << plain.body;
    }
}

TEST_F(EngineDoors, C044OneSchemaOnEveryRoute) {
    const json format = {
        {"type", "json_schema"}, {"name", "v"}, {"schema", kVerdict}, {"strict", true}};
    for (int seed = 0; seed < 5; ++seed) {
        SCOPED_TRACE(seed);
        for (const char* effort : {"high", "none"}) {
            const HttpResult r = post("/v1/responses",
                                      {{"model", "nano"},
                                       {"input", "Answer as json."},
                                       {"seed", seed},
                                       {"text", {{"format", format}}},
                                       {"reasoning", {{"effort", effort}}}});
            ASSERT_EQ(r.status, 200) << r.body;
            const json answer = r.parsed();
            if (answer["status"] != "completed") continue;  // a thought without an end
            std::string text;
            bool reasoning = false;
            for (const json& item : answer["output"]) {
                if (item["type"] == "message") text = item["content"][0]["text"];
                reasoning = reasoning || item["type"] == "reasoning";
            }
            EXPECT_TRUE(is_verdict(text)) << r.body;
            if (std::string(effort) == "none") {
                EXPECT_FALSE(reasoning);
            }
        }
        EXPECT_TRUE(is_verdict(
            content(post("/v1/chat/completions",
                         ask("Answer as json.",
                             {{"seed", seed}, {"response_format", schema_format(kVerdict)}})))));
        const HttpResult plain = post("/v1/completions",
                                      {{"model", "nano"},
                                       {"prompt", "Answer as json: "},
                                       {"seed", seed},
                                       {"max_tokens", 60},
                                       {"response_format", schema_format(kVerdict, false)}});
        ASSERT_EQ(plain.status, 200) << plain.body;
        EXPECT_TRUE(is_verdict(plain.parsed()["choices"][0]["text"])) << plain.body;
        const HttpResult message = post(
            "/v1/messages",
            {{"model", "nano"},
             {"max_tokens", 100},
             {"thinking", {{"type", "disabled"}}},
             {"messages", json::array({{{"role", "user"}, {"content", "Answer as json."}}})},
             {"output_config", {{"format", {{"type", "json_schema"}, {"schema", kVerdict}}}}}});
        ASSERT_EQ(message.status, 200) << message.body;
        EXPECT_TRUE(is_verdict(message.parsed()["content"][0]["text"])) << message.body;
    }
}

TEST_F(EngineDoors, C038ReasoningIsFree) {
    const json schema = {{"type", "object"},
                         {"properties", {{"city", {{"type", "string"}, {"minLength", 1}}}}},
                         {"required", {"city"}},
                         {"additionalProperties", false}};
    const json on = {{"type", "enabled"}};
    const HttpResult r = post("/v1/chat/completions",
                              ask("Name a city as json.",
                                  {{"response_format", schema_format(schema)},
                                   {"thinking", on},
                                   {"temperature", 0},
                                   {"max_tokens", 400}}));
    ASSERT_EQ(r.status, 200) << r.body;
    const json choice = r.parsed()["choices"][0];
    if (choice["finish_reason"] == "stop") {
        const json value =
            json::parse(choice["message"]["content"].get<std::string>(), nullptr, false);
        ASSERT_TRUE(value.is_object()) << r.body;
        EXPECT_TRUE(value.contains("city"));
    }
    const HttpResult cut = post("/v1/chat/completions",
                                ask("Name a city as json.",
                                    {{"response_format", schema_format(schema)},
                                     {"thinking", on},
                                     {"temperature", 0},
                                     {"max_tokens", 3}}));
    const json short_choice = cut.parsed()["choices"][0];
    EXPECT_EQ(short_choice["finish_reason"], "length");
    EXPECT_FALSE(short_choice["message"]["reasoning_content"].get<std::string>().empty());
    EXPECT_TRUE(short_choice["message"]["content"].is_null() ||
                short_choice["message"]["content"] == "");
}

TEST_F(EngineDoors, VllmSpellings) {
    const auto answer = [&](json more) {
        more["max_tokens"] = 60;
        return content(post("/v1/chat/completions", ask("Answer.", std::move(more))));
    };
    EXPECT_TRUE(is_verdict(answer({{"guided_json", kVerdict}})));
    EXPECT_TRUE(is_verdict(answer({{"structured_outputs", {{"json", kVerdict}}}})));
    const auto all_digits = [](const std::string& text) {
        return text.size() == 4 && text.find_first_not_of("0123456789") == std::string::npos;
    };
    EXPECT_TRUE(all_digits(answer({{"guided_regex", "[0-9]{4}"}})));
    EXPECT_TRUE(all_digits(answer({{"structured_outputs", {{"regex", "[0-9]{4}"}}}})));
    EXPECT_TRUE(
        all_digits(answer({{"response_format", {{"type", "regex"}, {"regex", "[0-9]{4}"}}}})));
    const std::string chosen = answer({{"guided_choice", {"left", "right"}}});
    EXPECT_TRUE(chosen == "left" || chosen == "right") << chosen;
    const std::string derived = answer({{"guided_grammar", "root ::= \"x\" | \"yy\""}});
    EXPECT_TRUE(derived == "x" || derived == "yy") << derived;
    // The checkpoint's object may be longer than the answer; it is one from its first letter on.
    const json object = {{"structured_outputs", {{"json_object", true}}}, {"temperature", 0}};
    EXPECT_EQ(answer(object).find('{'), 0u);
    const HttpResult two =
        post("/v1/chat/completions",
             ask("Answer as json.",
                 {{"guided_regex", "a"}, {"response_format", schema_format(kVerdict)}}));
    EXPECT_EQ(two.status, 400) << two.body;
    // The same fields of plain texts; and at most one there, too.
    const HttpResult digits =
        post("/v1/completions", {{"model", "nano"}, {"prompt", "7"}, {"guided_regex", "[0-9]{4}"}});
    EXPECT_TRUE(all_digits(digits.parsed()["choices"][0]["text"])) << digits.body;
    EXPECT_EQ(post("/v1/completions",
                   {{"model", "nano"},
                    {"prompt", "7"},
                    {"guided_regex", "[0-9]{4}"},
                    {"response_format", {{"type", "json_object"}}}})
                  .status,
              400);
    const HttpResult bad =
        post("/v1/completions", {{"model", "nano"}, {"prompt", "7"}, {"guided_regex", "("}});
    EXPECT_EQ(bad.status, 400);
    EXPECT_EQ(bad.parsed()["error"]["param"], "structured_outputs") << bad.body;
}

TEST_F(EngineDoors, C043StrictCallsAreValid) {
    const json row = testing::case_rows("structured.json", "C-043")[0];
    const auto is_valid = [](const std::string& arguments) {
        const json a = json::parse(arguments, nullptr, false);
        if (!a.is_object() || a.size() != 3 || !a["seats"].is_array() || !a["name"].is_string())
            return false;
        if (a["seats"].empty() || a["seats"].size() > 3) return false;
        for (const json& seat : a["seats"])
            if (!seat.is_number_integer() && !(seat.is_number() && seat == seat.get<int64_t>()))
                return false;
        return a["meta"].is_object() && a["meta"].size() == 1 && a["meta"]["vip"].is_boolean();
    };
    const json& in = row["in"];
    int num_calls = 0;
    for (const char* thinking : {"disabled", "enabled"}) {
        for (int seed = 0; seed < 4; ++seed) {
            const HttpResult r = post("/v1/chat/completions",
                                      ask("Book seats.",
                                          {{"tools", in["tools"]},
                                           {"tool_choice", in["tool_choice"]},
                                           {"seed", seed},
                                           {"max_tokens", 400},
                                           {"thinking", {{"type", thinking}}}}));
            ASSERT_EQ(r.status, 200) << r.body;
            const json choice = r.parsed()["choices"][0];
            if (choice["finish_reason"] == "length") continue;
            EXPECT_EQ(choice["finish_reason"], "tool_calls") << r.body;
            for (const json& call : choice["message"]["tool_calls"]) {
                EXPECT_EQ(call["function"]["name"], "book");
                EXPECT_TRUE(is_valid(call["function"]["arguments"])) << r.body;
                ++num_calls;
            }
        }
    }
    EXPECT_GE(num_calls, 4);
    // Messages: the same tool, its strict field and its way to require it.
    const json& function = in["tools"][0]["function"];
    const json tool = {
        {"name", "book"}, {"input_schema", function["parameters"]}, {"strict", true}};
    for (const json& choice : {json{{"type", "any"}}, json{{"type", "tool"}, {"name", "book"}}}) {
        const HttpResult r =
            post("/v1/messages",
                 {{"model", "nano"},
                  {"max_tokens", 400},
                  {"thinking", {{"type", "disabled"}}},
                  {"messages", json::array({{{"role", "user"}, {"content", "Book seats."}}})},
                  {"tools", json::array({tool})},
                  {"tool_choice", choice}});
        ASSERT_EQ(r.status, 200) << r.body;
        const json answer = r.parsed();
        if (answer["stop_reason"] == "max_tokens") continue;
        EXPECT_EQ(answer["stop_reason"], "tool_use");
        int calls = 0;
        for (const json& block : answer["content"]) {
            if (block["type"] != "tool_use") continue;
            ++calls;
            EXPECT_TRUE(is_valid(block["input"].dump())) << r.body;
        }
        EXPECT_GT(calls, 0) << r.body;
    }
    // A schema that cannot be enforced is refused by the tool's own field.
    json broken = in["tools"];
    broken[0]["function"]["parameters"]["properties"]["name"]["pattern"] = "(";
    const HttpResult refused = post("/v1/chat/completions",
                                    ask("Book.", {{"tools", broken}, {"tool_choice", "required"}}));
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_EQ(refused.parsed()["error"]["param"], "tools");
}

std::string base64_file(const std::string& path, size_t most = 1 << 20) {
    std::ifstream f(path, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(f), {});
    bytes.resize(std::min(bytes.size(), most));
    return base64(bytes);
}

TEST_F(EngineDoors, PicturesAreSeen) {
    const std::string data = base64_file(testing::data_path("pictures/circle.png"));
    const json image = {{"type", "image_url"},
                        {"image_url", {{"url", "data:image/png;base64," + data}}}};
    const json content_parts =
        json::array({image, {{"type", "text"}, {"text", "What do you see?"}}});
    const auto body = [&](bool stream) {
        return TestServer::chat(
            {{"messages", json::array({{{"role", "user"}, {"content", content_parts}}})},
             {"thinking", {{"type", "disabled"}}},
             {"temperature", 0},
             {"stream", stream}});
    };
    const HttpResult whole = post("/v1/chat/completions", body(false));
    const std::string text = content(whole);
    EXPECT_NE(text.find("circle"), std::string::npos) << text;
    std::string streamed;
    for (const std::string& event : events_of(post("/v1/chat/completions", body(true)).body)) {
        if (event == "[DONE]") continue;
        const json delta = json::parse(event)["choices"][0]["delta"];
        if (delta.contains("content") && delta["content"].is_string())
            streamed += delta["content"].get<std::string>();
    }
    EXPECT_EQ(streamed, text);
    const json usage = whole.parsed()["usage"];
    EXPECT_GT(usage["prompt_tokens"], 20);
}

TEST_F(EngineDoors, ABrokenPictureIs400EvenOfAStream) {
    // The header is whole, the pixels are not: only decoding finds out.
    const std::string data = base64_file(testing::data_path("pictures/circle.png"), 120);
    const json image = {{"type", "image_url"},
                        {"image_url", {{"url", "data:image/png;base64," + data}}}};
    for (const bool stream : {false, true}) {
        const HttpResult r = post(
            "/v1/chat/completions",
            TestServer::chat(
                {{"messages", json::array({{{"role", "user"}, {"content", json::array({image})}}})},
                 {"stream", stream}}));
        EXPECT_EQ(r.status, 400) << r.body;
        EXPECT_EQ(r.field("content-type"), "application/json");
        EXPECT_EQ(r.parsed()["error"]["type"], "invalid_request_error");
        EXPECT_EQ(r.parsed()["error"]["param"], "messages");
    }
    EXPECT_EQ(post("/v1/chat/completions", ask("hi", {{"max_tokens", 2}})).status, 200);
}

}  // namespace
}  // namespace deepinfer::server
