#include "deepinfer/recipe.h"
#include "recipe/recipe_test_util.h"

namespace deepinfer::recipe {
namespace {

using ::deepinfer::testing::below;
using ::deepinfer::testing::test_rng;

const std::string D = "｜DSML｜";

std::string parameter(const std::string& name,
                      const std::string& string,
                      const std::string& value) {
    return "<" + D + " parameter name=\"" + name + "\" string=\"" + string + "\">" + value + "</" +
           D + " parameter>\n";
}
std::string invoke(const std::string& name, const std::string& body) {
    return "<" + D + " invoke name=\"" + name + "\">\n" + body + "</" + D + " invoke>\n";
}
std::string block(const std::string& invokes) {
    return "\n\n<" + D + " calls>\n" + invokes + "</" + D + " calls>";
}

ParsingOptions start(ParserStart where, bool compat = false) {
    ParsingOptions options;
    options.start = where;
    options.compat = compat;
    return options;
}
const ParserStart R = ParserStart::kReasoning;
const ParserStart C = ParserStart::kContent;

struct Example {
    ParserStart start;
    std::string output;
    std::string want;  // Parsed::summary()
};

// The worked examples of prompt spec 5.5, in our own mode.
TEST(StreamParser, WorkedExamplesAtEveryCut) {
    const std::string paris = invoke(
        "get_weather", parameter("location", "true", "Paris") + parameter("days", "false", "3"));
    const Example examples[] = {
        {R, "Let me see.\n</think>\n\nParis.", "R[Let me see.] C[Paris.] F[stop]"},
        {C, "\n\nHello", "R[] C[Hello] F[stop]"},
        {C, "Hi\n\nthere", "R[] C[Hi\n\nthere] F[stop]"},
        {R,
         "Need it.</think>" + block(paris),
         "R[Need it.] C[] F[tool_calls] get_weather({\"location\": \"Paris\", \"days\": 3})"},
        {R,
         "</think>I will check." +
             block(invoke("a", "") + invoke("b", parameter("x", "false", "[1, 2]"))),
         "R[] C[I will check.] F[tool_calls] a({}) b({\"x\": [1, 2]})"},
        {C,
         block(invoke("f", parameter("t", "true", "a \"q\"\n<b> \\ </think> x"))),
         "R[] C[] F[tool_calls] f({\"t\": \"a \\\"q\\\"\\n<b> \\\\ </think> x\"})"},
        {R,
         "Hmm" + block(invoke("f", parameter("a", "false", "1"))),
         "R[Hmm] C[] F[tool_calls] f({\"a\": 1})"},
        {C, "ok</think>done", "R[] C[okdone] F[stop]"},
        {C, block(invoke("f", "")) + "trailing", "R[] C[] F[tool_calls] f({})"},
        {C,
         "\n\n<" + D + "toolcalls>\n<" + D + "invoke name=\"g\">\n<" + D +
             "parameter name=\"c\" string=\"true\">S</" + D + "parameter>\n</" + D + "invoke>\n</" +
             D + "tool_calls>",
         "R[] C[] F[tool_calls] g({\"c\": \"S\"})"},
        {C,
         "\n\n" + invoke("g", parameter("c", "true", "S")),
         "R[] C[] F[tool_calls] g({\"c\": \"S\"})"},
        {C,
         block(invoke("g", "<" + D + " parameter name=\"c\">S</" + D + " parameter>\n")),
         "R[] C[] F[tool_calls] g({\"c\": \"S\"})"},
        {C,
         block(invoke("f", parameter("n", "false", "tru"))),
         "R[] C[] F[tool_calls] f({\"n\": \"tru\"})"},
        {C, "a\n\n<｜DS nope", "R[] C[a\n\n<｜DS nope] F[stop]"},
        {ParserStart::kCalls,
         invoke("f", "") + "</" + D + " calls>",
         "R[] C[] F[tool_calls] f({})"},
        {C,
         block(invoke("f", parameter("a", "false", "1") + parameter("a", "false", "2"))),
         "R[] C[] F[tool_calls] f({\"a\": 1, \"a\": 2})"},
        {R, "thinking forever", "R[thinking forever] C[] F[stop]"},
        {C, block(invoke("f", "{\"a\": 1}\n")), "R[] C[] F[tool_calls] f({\"a\": 1})"},
        {C, "Hi\n\n\n" + block(invoke("f", "")), "R[] C[Hi] F[tool_calls] f({})"},
        {C, "x<\n</think>y", "R[] C[x<\ny] F[stop]"},
        {R, "x<\n</think>y", "R[x<\n] C[y] F[stop]"},
        // a repair of ours: an invoke that nothing closed
        {C,
         block("<" + D + " invoke name=\"a\"/>\n" + invoke("b", parameter("x", "false", "1"))),
         "R[] C[] F[tool_calls] a({}) b({\"x\": 1})"},
    };
    for (const Example& e : examples)
        EXPECT_EQ(parse_every_cut(e.output, start(e.start)).summary(), e.want) << e.output;
}

TEST(StreamParser, CallsUnderAConstraintBeginBehindTheReasoning) {
    ParsingOptions options = start(R);
    options.calls_in_reasoning = false;
    const std::string early = block(invoke("f", parameter("a", "false", "1")));
    const std::string late = block(invoke("g", ""));
    EXPECT_EQ(parse_every_cut("Hmm" + early + "</think>" + late, options).summary(),
              "R[Hmm" + early + "] C[] F[tool_calls] g({})");
    EXPECT_EQ(parse_every_cut("Hmm" + early, options).summary(), "R[Hmm" + early + "] C[] F[stop]");
}

TEST(StreamParser, CompatPassesWhatTheReferencePasses) {
    const Example examples[] = {
        {C,
         block(invoke("f", parameter("n", "false", "tru"))),
         "R[] C[] F[tool_calls] f({\"n\": tru})"},
        {C, block(invoke("f", "{\"a\": 1}\n")), "R[] C[] F[tool_calls] f({})"},
        {C, "Done.</" + D + " parameter>", "R[] C[Done.</" + D + " parameter>] F[stop]"},
        {C,
         block("<" + D + " invoke name=\"f\">\n<" + D +
               " parameter name=\"p\" string=\"true\">par"),
         "R[] C[] F[tool_calls] f({\"p\": \"par</" + D + " calls>)"},
    };
    for (size_t i = 0; i + 1 < std::size(examples); ++i)
        EXPECT_EQ(parse_every_cut(examples[i].output, start(examples[i].start, true)).summary(),
                  examples[i].want)
            << examples[i].output;
}

TEST(StreamParser, LengthKeepsACutCallAndStopClosesIt) {
    const std::string head = "\n\n<" + D + " calls>\n<" + D + " invoke name=\"f\">\n";
    struct Row {
        std::string text;
        std::string at_length;
        std::string at_stop;
    };
    const Row rows[] = {
        {head + "<" + D + " parameter name=\"p\" string=\"true\">par",
         "{\"p\": \"par",
         "{\"p\": \"par\"}"},
        {head + "<" + D + " parameter name=\"p\" string=\"true\">par</｜DS",
         "{\"p\": \"par</｜DS",
         "{\"p\": \"par</｜DS\"}"},
        {head + "<" + D + " parameter name=\"p\" string=\"false\">[1, 2",
         "{\"p\": [1, 2",
         "{\"p\": \"[1, 2\"}"},
        {head + "<" + D + " parameter name=\"p\" string=\"false\">12", "{\"p\": 12", "{\"p\": 12}"},
        {head + "<" + D + " parameter name=\"p\" str", "{\"p\": ", "{\"p\": null}"},
        {head + "<" + D + " parameter name=\"pq", "{\"pq", "{\"pq\": null}"},
        {head + parameter("p", "true", "x"), "{\"p\": \"x\"", "{\"p\": \"x\"}"},
        {head, "", "{}"},
    };
    for (const Row& row : rows) {
        const Parsed length = parse_every_cut(row.text, start(C), FinishReason::kLength);
        ASSERT_EQ(length.calls.size(), 1u) << row.text;
        EXPECT_EQ(length.calls[0].arguments, row.at_length);
        EXPECT_EQ(length.finish, "length");
        const Parsed stop = parse_every_cut(row.text, start(C), FinishReason::kStop);
        EXPECT_EQ(stop.calls[0].arguments, row.at_stop) << row.text;
        EXPECT_EQ(stop.finish, "tool_calls");
        EXPECT_TRUE(nlohmann::json::accept(stop.calls[0].arguments)) << row.text;
    }
    const Parsed name = parse_every_cut(
        "\n\n<" + D + " calls>\n<" + D + " invoke name=\"ge", start(C), FinishReason::kLength);
    EXPECT_TRUE(name.calls.empty());
}

TEST(StreamParser, StopSequencesEndAnswerTextOnly) {
    ParsingOptions options = start(R);
    options.stop = {"STOP", ""};
    EXPECT_EQ(parse_every_cut("STOP here</think>ans STOP x", options).summary(),
              "R[STOP here] C[ans ] F[stop]");
    EXPECT_EQ(
        parse_every_cut("r</think>" + block(invoke("f", parameter("a", "true", "STOP"))), options)
            .summary(),
        "R[r] C[] F[tool_calls] f({\"a\": \"STOP\"})");
    options = start(C);
    options.stop = {"def", "cd", "bcde"};
    EXPECT_EQ(parse_every_cut("abcdef", options).summary(), "R[] C[ab] F[stop]");
    options.stop = {"<"};
    EXPECT_EQ(parse_every_cut("x" + block(invoke("f", "")), options).summary(),
              "R[] C[x\n\n] F[stop]");
    options.stop = {"\n"};
    EXPECT_EQ(parse_every_cut("x\n\ny", options).summary(), "R[] C[x] F[stop]");
    StreamParser parser(options);
    std::vector<Delta> deltas;
    parser.push("one\ntwo", &deltas);
    EXPECT_TRUE(parser.finished());
    EXPECT_EQ(parser.stop_sequence(), "\n");
    parser.push("three", &deltas);
    parser.finish(FinishReason::kLength, &deltas);
    EXPECT_EQ(parser.finish_reason(), FinishReason::kStop);
    ASSERT_EQ(deltas.size(), 1u);
    EXPECT_EQ(deltas[0].text, "one");
}

TEST(StreamParser, JsonModeLeavesTheJsonBetweenBlanks) {
    ParsingOptions options = start(C);
    options.json = true;
    EXPECT_EQ(parse_every_cut("Sure:\n```json\n{\"a\": 1}\n```\nbye", options).content,
              " {\"a\": 1} ");
    EXPECT_EQ(parse_every_cut("  {\"a\": [1]} tail", options).content, " {\"a\": [1]} tail");
    options.stop = {"here"};
    const Parsed stopped = parse_every_cut("Sure:\n```json\n{\"a\": \"stop here\"}\n```", options);
    EXPECT_EQ(stopped.content, " {\"a\": \"stop ");
    EXPECT_EQ(stopped.finish, "stop");
}

TEST(StreamParser, ToolsOffShowsMarkupAsText) {
    ParsingOptions options = start(C);
    options.tools = false;
    const std::string text = block(invoke("f", ""));
    EXPECT_EQ(parse_every_cut(text, options).content, text.substr(2));
}

TEST(StreamParser, StrayMarkupIsDroppedWhileToolsAreOn) {
    EXPECT_EQ(parse_every_cut("Done.\n</" + D + " calls>\n", start(C)).summary(),
              "R[] C[Done.] F[stop]");
    EXPECT_EQ(parse_every_cut("a</" + D + " invoke>\nb", start(C)).summary(), "R[] C[ab] F[stop]");
    EXPECT_EQ(parse_every_cut("a " + D + " b", start(C)).summary(), "R[] C[a  b] F[stop]");
    EXPECT_EQ(parse_every_cut("r</" + D + " calls>\n</think>c", start(R)).summary(),
              "R[r] C[c] F[stop]");
    EXPECT_EQ(parse_pieces({"a</" + D + " x>b</think>"}, start(C), FinishReason::kStop)
                  .counters.num_invalid_markers,
              2);
}

/// Found by the fuzzer: where a stray tag without an end gives up must not depend on the cut.
TEST(StreamParser, StrayTagWithoutAnEndGivesUp) {
    const std::string tail = std::string(200, 'y');
    const Parsed parsed = parse_every_cut("a</" + D + tail + "b", start(C));
    EXPECT_EQ(parsed.content, "a" + std::string(72, 'y') + "b");
}

TEST(StreamParser, UnreadableBodyIsNeverACallWithoutArguments) {
    const Parsed parsed = parse_every_cut(block(invoke("wipe", "<force>true</force>\n")), start(C));
    ASSERT_EQ(parsed.calls.size(), 1u);
    EXPECT_EQ(parsed.calls[0].arguments, "<force>true</force>");
    EXPECT_EQ(parsed.counters.num_incomplete_calls, 1);
}

TEST(StreamParser, OnlyTheFirstCallWithoutParallelCalls) {
    ParsingOptions options = start(C);
    options.parallel_tool_calls = false;
    EXPECT_EQ(parse_every_cut(block(invoke("a", "") + invoke("b", "")), options).summary(),
              "R[] C[] F[tool_calls] a({})");
}

TEST(StreamParser, UndeclaredToolsAreCountedAndPassed) {
    ParsingOptions options = start(C);
    options.parameters = {{"f", "{\"type\": \"object\"}"}};
    const Parsed parsed = parse_every_cut(block(invoke("f", "") + invoke("g", "")), options);
    EXPECT_EQ(parsed.calls.size(), 2u);
    EXPECT_EQ(parsed.counters.num_undeclared_calls, 1);
}

TEST(StreamParser, LongJsonValuesGoOutUnchecked) {
    const std::string value = "[" + std::string(70'000, ' ') + "broken";
    const Parsed parsed = parse_pieces(
        {block(invoke("f", parameter("a", "false", value)))}, start(C), FinishReason::kStop);
    EXPECT_EQ(parsed.calls[0].arguments, "{\"a\": " + value + "}");
    ParsingOptions options = start(C);
    options.strict_arguments = false;
    EXPECT_EQ(parse_every_cut(block(invoke("f", parameter("a", "false", "tru"))), options)
                  .calls[0]
                  .arguments,
              "{\"a\": tru}");
}

TEST(StreamParser, StringValuesStreamAsTheyCome) {
    StreamParser parser(start(C));
    std::vector<Delta> deltas;
    parser.push("<" + D + " calls>\n<" + D + " invoke name=\"f\">\n<" + D +
                    " parameter name=\"code\" string=\"true\">",
                &deltas);
    ASSERT_FALSE(deltas.empty());
    EXPECT_EQ(deltas[0].kind, Delta::Kind::kCall);
    for (int i = 0; i < 100; ++i) {
        deltas.clear();
        parser.push("x", &deltas);
        ASSERT_EQ(deltas.size(), 1u);
        EXPECT_EQ(deltas[0].text, "x");
    }
}

TEST(StreamParser, BrokenUtf8BecomesReplacementCharacters) {
    EXPECT_EQ(parse_every_cut("a\xE4\xB8 b\xFF\xF0\x9F\x98", start(C)).content,
              "a\xEF\xBF\xBD b\xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(parse_every_cut("é漢字😀", start(C)).content, "é漢字😀");
}

/// Random outputs out of markers and their pieces: the cut never matters, and nothing is invented.
TEST(StreamParser, RandomOutputsGiveTheSameForEveryCut) {
    std::mt19937 rng = test_rng();
    const std::vector<std::string> parts = {"<",
                                            "</",
                                            "<" + D,
                                            "</" + D,
                                            D,
                                            "\n",
                                            "\n\n",
                                            "</think>",
                                            "<think>",
                                            "</thi",
                                            "x",
                                            "text ",
                                            "中",
                                            "😀",
                                            "\"",
                                            "\\",
                                            ">",
                                            " calls>\n",
                                            " invoke name=\"",
                                            "f\">\n",
                                            " parameter name=\"",
                                            "p\"",
                                            " string=\"true\">",
                                            " string=\"false\">",
                                            "1",
                                            "[1, 2]",
                                            "{\"a\": 1}",
                                            "</" + D + " parameter>\n",
                                            "</" + D + " invoke>\n",
                                            "</" + D + " calls>",
                                            "STOP",
                                            "ST",
                                            "{",
                                            "```",
                                            "```json\n"};
    for (int round = 0; round < 400; ++round) {
        std::string text;
        const uint32_t n = 1 + below(rng, 14);
        for (uint32_t i = 0; i < n; ++i)
            text += parts[below(rng, static_cast<uint32_t>(parts.size()))];
        ParsingOptions options;
        options.start = static_cast<ParserStart>(below(rng, 5));
        options.compat = below(rng, 2) == 0;
        options.json = below(rng, 6) == 0;
        options.tools = below(rng, 6) != 0;
        if (below(rng, 3) == 0) options.stop = {"STOP", "<", "x\n"};
        const FinishReason finish =
            below(rng, 2) == 0 ? FinishReason::kStop : FinishReason::kLength;
        const Parsed parsed = parse_every_cut(text, options, finish);
        if (options.tools && !options.compat) {
            EXPECT_EQ(parsed.content.find(D), std::string::npos) << text;
            EXPECT_EQ(parsed.reasoning.find(D), std::string::npos) << text;
        }
        if (::testing::Test::HasFailure()) return;
    }
}

}  // namespace
}  // namespace deepinfer::recipe
