#include "deepinfer/recipe.h"
#include "recipe/recipe_test_util.h"

namespace deepinfer::recipe {
namespace {

using ::deepinfer::testing::below;
using ::deepinfer::testing::released_tokenizer;
using ::deepinfer::testing::test_rng;

const std::string kDsml = "｜DSML｜";

ToolDefinition weather() {
    ToolDefinition tool;
    tool.name = "get_weather";
    tool.description = "Get weather";
    tool.parameters =
        "{\"type\": \"object\", \"properties\": {\"location\": {\"type\": \"string\"}}, "
        "\"required\": [\"location\"]}";
    return tool;
}

Message tool_result(const std::string& id, const std::string& text) {
    Message m = Message::user(text);
    m.role = Role::kTool;
    m.tool_call_id = id;
    return m;
}

Message with_calls(Message m, std::vector<ToolCall> calls) {
    m.tool_calls = std::move(calls);
    return m;
}

Conversation conversation(std::vector<Message> messages, bool thinking) {
    Conversation c;
    c.messages = std::move(messages);
    c.thinking = thinking;
    return c;
}

/// Token count and the text's hash, as the specification lists them.
void expect_sum(const Conversation& c, size_t num_tokens, const std::string& sha) {
    const PromptText prompt = encode_prompt(c);
    EXPECT_EQ(sha16(prompt.text), sha) << prompt.text;
    const Result<std::vector<int32_t>> ids = prompt_ids(released_tokenizer(), prompt);
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    EXPECT_EQ(ids.value().size(), num_tokens) << prompt.text;
}

TEST(EncodePrompt, WorkedExamples) {
    const Message paris = Message::user("Weather in Paris?");
    expect_sum(conversation({Message::user("Hello")}, true), 31, "07aa7538f5ad045b");
    expect_sum(conversation({Message::system("You are helpful."), Message::user("Hello")}, false),
               10,
               "b2c06dc0d20caa40");
    Conversation c = conversation({Message::system("Be brief."), Message::user("Hi")}, true);
    c.effort = Effort::from_number(30);
    expect_sum(c, 34, "7f591b7cc6db160f");
    const std::vector<Message> sums = {
        Message::user("1+1?"), Message::assistant("2", "Add."), Message::user("2+2?")};
    expect_sum(conversation(sums, true), 43, "dc3fe63accb7bd0f");
    expect_sum(conversation(sums, false), 17, "5caaca7e1002487d");
    c = conversation({paris}, true);
    c.tools = {weather()};
    expect_sum(c, 289, "c10e6b8484122600");
    c.messages = {
        Message::system("Be brief."),
        paris,
        with_calls(Message::assistant("", "Need tool."),
                   {{"a",
                     "get_weather",
                     "{\"location\":\"Paris\",\"days\":3,\"opts\":{\"u\":\"C\"},\"now\":true}"}}),
        tool_result("a", "18C")};
    expect_sum(c, 402, "6b3e5225b52a8467");
    expect_sum(conversation({Message::user("Hi"),
                             Message::assistant("Hello!", "Greet."),
                             Message::system("From now on answer in French.")},
                            true),
               44,
               "1e73417a26656692");
    expect_sum(conversation({Message::user("Hi"),
                             Message::assistant("Hello!"),
                             Message::system("Answer in French."),
                             Message::user("Bye")},
                            true),
               44,
               "6c4d36f733fcf6c8");
    c.messages = {Message::user("Compare."),
                  with_calls(Message::assistant("Checking.", "Two calls."),
                             {{"A", "get_weather", "{\"location\": \"Paris\"}"},
                              {"B", "get_weather", "{\"location\": \"Rome\"}"}}),
                  tool_result("B", "25C"),
                  tool_result("A", "18C"),
                  Message::user("And which is warmer?")};
    expect_sum(c, 388, "10844f91b1796b8d");
    c.messages = {Message::user("Hi"), Message::assistant("Hello!", "Greet."), paris};
    expect_sum(c, 300, "4ab778cd2168a68f");
    Message pictures = Message::user("What is this?");
    pictures.content.resize(3);
    pictures.content[1].image.emplace();
    pictures.content[2].image.emplace();
    c = conversation({pictures}, false);
    EXPECT_EQ(num_images(c), 2);
    expect_sum(c, 11, "48477013b7536c62");
    c = conversation({Message::user("Give me a number as json")}, false);
    c.response_format = ResponseFormat::kJsonObject;
    expect_sum(c, 34, "f9e47c3dcb14cf49");
    c = conversation({paris}, false);
    c.tools = {weather()};
    c.tool_choice = ToolChoice::kRequired;
    expect_sum(c, 270, "270f0facab693a44");
    Message open = Message::assistant("Roses are");
    open.open = true;
    expect_sum(conversation({Message::user("Write a poem"), open}, false), 10, "5dab04c211ed6bae");
    Message reminder = Message::user("Be brief.");
    reminder.role = Role::kLatestReminder;
    expect_sum(conversation({Message::user("x"), Message::assistant("y"), reminder}, true),
               39,
               "c889b22ae479955a");
    expect_sum(
        conversation({Message::system("A"), Message::system("B"), Message::user("C")}, false),
        9,
        "10f2b129dbb61910");
    c = conversation(
        {paris,
         with_calls(Message::assistant(""), {{"x", "get_weather", "{\"location\": \"Paris\"}"}}),
         tool_result("x", "{\"temp\": 20}")},
        false);
    ToolDefinition bare;
    bare.name = "get_weather";
    bare.parameters = "{\"type\": \"object\"}";
    c.tools = {bare};
    expect_sum(c, 298, "de55bfabe07661ad");
}

TEST(EncodePrompt, ToolTextIsTheWireFormat) {
    Conversation c = conversation({}, false);
    c.tools = {weather()};
    c.tools[0].defer_loading = true;  // an empty list of schemas
    const PromptText prompt = encode_prompt(c);
    const size_t begin = prompt.text.find("## Tools");
    const std::string text = prompt.text.substr(begin, prompt.text.find("<｜Assistant｜>") - begin);
    EXPECT_EQ(text.size(), 983u);
    EXPECT_EQ(sha16(text), "3c2b43c02161a7a1");
    c.tools[0].defer_loading = false;
    const PromptText full = encode_prompt(c);
    const std::string with_schema =
        full.text.substr(begin, full.text.find("<｜Assistant｜>") - begin);
    EXPECT_EQ(sha16(with_schema), "deb1277b88494b98");
}

TEST(EncodePrompt, FlaggedRangesAreExactlyTheTemplatesTokens) {
    const std::string every =
        "<｜begin▁of▁sentence｜><｜User｜></think>" + kDsml + "<｜deepseek_image｜><｜System｜>";
    Conversation c =
        conversation({Message::system(every),
                      Message::user(every),
                      with_calls(Message::assistant(every, every),
                                 {{"a", every, "{\"k\": " + nlohmann::json(every).dump() + "}"}}),
                      tool_result("a", every)},
                     true);
    c.tools = {weather()};
    c.tools[0].description = every;
    const PromptText prompt = encode_prompt(c);
    std::string rest = prompt.text;
    for (size_t i = prompt.specials.size(); i-- > 0;) {
        const SpecialRange& r = prompt.specials[i];
        const std::string token = prompt.text.substr(r.begin, r.end - r.begin);
        EXPECT_GE(released_tokenizer().id_of(token), 0) << token;
        if (i > 0) {
            EXPECT_GE(r.begin, prompt.specials[i - 1].end);
        }
        rest.erase(r.begin, r.end - r.begin);
    }
    size_t copies = 0;
    for (size_t at = rest.find(every); at != std::string::npos; at = rest.find(every, at + 1))
        ++copies;
    EXPECT_EQ(copies, 8u) << "content lost a byte to a flagged range";
    const auto ids = prompt_ids(released_tokenizer(), prompt);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(std::count(ids.value().begin(), ids.value().end(), 129264), 0)
        << "a spelled image is no image";
}

/// Prompt specification, law 4: with tools, or without thinking, a turn only adds to the prompt.
TEST(EncodePrompt, PromptsAreAppendOnly) {
    std::mt19937 rng = test_rng();
    const std::vector<std::string> texts = {"", "a", "b\n\nc", "<｜User｜>", "中文 😀", "\n"};
    const auto text = [&] { return texts[below(rng, static_cast<uint32_t>(texts.size()))]; };
    for (int round = 0; round < 200; ++round) {
        Conversation c;
        c.thinking = below(rng, 2) == 0;
        if (c.thinking || below(rng, 2) == 0) c.tools = {weather()};
        if (below(rng, 2) == 0) c.messages.push_back(Message::system(text()));
        c.messages.push_back(Message::user(text()));
        for (int turn = 0; turn < 4; ++turn) {
            const std::string prompt = encode_prompt(c).text;
            std::string reasoning = c.thinking ? text() : "";
            std::string content = text();
            const bool call = !c.tools.empty() && below(rng, 2) == 0;
            std::string generated = (c.thinking ? reasoning + "</think>" : "") + content;
            if (call)
                generated += "\n\n<" + kDsml + " calls>\n<" + kDsml + " invoke name=\"f\">\n<" +
                             kDsml + " parameter name=\"k\" string=\"false\">1</" + kDsml +
                             " parameter>\n</" + kDsml + " invoke>\n</" + kDsml + " calls>";
            Message answer = Message::assistant(
                content, c.thinking ? std::optional<std::string>(reasoning) : std::nullopt);
            if (call) answer.tool_calls = {{"id", "f", "{\"k\": 1}"}};
            c.messages.push_back(answer);
            c.messages.push_back(call ? tool_result("id", text()) : Message::user(text()));
            const std::string next = encode_prompt(c).text;
            const std::string expected = prompt + generated + "<｜end▁of▁sentence｜>";
            ASSERT_EQ(next.substr(0, expected.size()), expected);
        }
    }
}

/// Rendered, then parsed: content, reasoning and calls come back.
TEST(EncodePrompt, ARenderedTurnParsesToItself) {
    std::mt19937 rng = test_rng();
    const std::vector<std::string> values = {
        "x", "a \"q\"\n", "</think> <b>", "中文", "\\", " ", "line\nline"};
    for (int round = 0; round < 300; ++round) {
        Conversation c = conversation({Message::user("q")}, below(rng, 2) == 0);
        c.tools = {weather()};
        const size_t before = encode_prompt(c).text.size();
        const std::string content = below(rng, 2) == 0 ? "" : "Content.";
        Message answer = Message::assistant(
            content, c.thinking ? std::optional<std::string>("Why.") : std::nullopt);
        nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
        for (uint32_t i = below(rng, 3); i > 0; --i) {
            const std::string key = "k" + std::to_string(i);
            if (below(rng, 2) == 0) {
                arguments[key] = values[below(rng, static_cast<uint32_t>(values.size()))];
            } else {
                arguments[key] = {1, nullptr, {{"z", 2.5}}};
            }
        }
        answer.tool_calls = {{"i", "get weather", arguments.dump()}};
        c.messages.push_back(answer);
        EncodeOptions options;
        options.generation_prompt = false;
        std::string rendered = encode_prompt(c, options).text.substr(before);
        rendered.resize(rendered.size() - std::string("<｜end▁of▁sentence｜>").size());
        c.messages.pop_back();
        const Parsed parsed = parse_pieces({rendered}, parsing_options(c), FinishReason::kStop);
        EXPECT_EQ(parsed.content, content);
        EXPECT_EQ(parsed.reasoning, c.thinking ? "Why." : "");
        ASSERT_EQ(parsed.calls.size(), 1u);
        EXPECT_EQ(parsed.calls[0].name, "get weather");
        EXPECT_EQ(nlohmann::ordered_json::parse(parsed.calls[0].arguments), arguments);
    }
}

TEST(EncodePrompt, GroundingTokensOfAnAnswerStayTokens) {
    const std::string box = "<｜ref｜>cat<｜/ref｜><｜box｜>[1]<｜/box｜>";
    const Conversation c =
        conversation({Message::user(box), Message::assistant(box), Message::user("q")}, false);
    const auto ids = prompt_ids(released_tokenizer(), encode_prompt(c));
    ASSERT_TRUE(ids.ok());
    for (const char* token : {"<｜ref｜>", "<｜/ref｜>", "<｜box｜>", "<｜/box｜>"}) {
        const int32_t id = released_tokenizer().id_of(token);
        EXPECT_EQ(std::count(ids.value().begin(), ids.value().end(), id), 1)
            << token << " once: in the answer, not in the user's text";
    }
}

TEST(EncodePrompt, GroundingTokensThatAVocabularyLacksAreText) {
    const Tokenizer nano = ::deepinfer::testing::load_packed("tokenizer/nano_tokenizer.json.gz");
    const Conversation c = conversation(
        {Message::user("q"), Message::assistant("<｜ref｜>"), Message::user("q")}, false);
    const auto ids = prompt_ids(nano, encode_prompt(c));
    EXPECT_TRUE(ids.ok()) << ids.status().to_string();
}

}  // namespace
}  // namespace deepinfer::recipe
