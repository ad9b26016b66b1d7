// ConstraintCompiler: cache and refusals, limits of time and memory that end a compilation while it
// runs, and what a tenant can and cannot take from the others.
#include "grammar/constraint_compiler.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "deepinfer/structured_output.h"

namespace deepinfer::grammar {
namespace {

using Type = StructuredOutputArgs::Type;

TEST(ConstraintCompiler, CachesRefusesAndCounts) {
    CompilerConfig config;
    config.cache_entries = 3;
    ConstraintCompiler compiler(Vocabulary::bytes(), config);
    const auto get = [&](const std::string& regex, const std::string& tenant = "") {
        return compiler.get(StructuredOutputArgs::of(Type::kRegex, regex), tenant);
    };
    const auto first = get("a+");
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(get("a+")->grammar, first->grammar);
    EXPECT_EQ(compiler.stats().hits, 1);
    for (int i = 0; i < 2; ++i) {
        const auto bad = get("(");
        EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
        EXPECT_NE(bad.status().message().find("group"), std::string::npos);
    }
    EXPECT_EQ(compiler.stats().refused, 1);
    EXPECT_EQ(compiler.stats().hits, 2);
    for (const char* r : {"b", "c", "d"}) ASSERT_TRUE(get(r).ok());
    EXPECT_EQ(compiler.stats().entries, 3);
    EXPECT_EQ(compiler.stats().evicted, 2);
    // The options that change the language are part of the key, where it begins is not.
    StructuredOutputArgs schema = StructuredOutputArgs::of(Type::kJson, "{}");
    const auto loose = compiler.get(schema);
    schema.in_reasoning = true;
    EXPECT_EQ(compiler.get(schema)->grammar, loose->grammar);
    schema.any_whitespace = false;
    EXPECT_NE(compiler.get(schema)->grammar, loose->grammar);
}

TEST(ConstraintCompiler, TenantsHaveTheirShare) {
    CompilerConfig config;
    config.tenant_bytes = 1;  // nothing but the newest stays
    ConstraintCompiler compiler(Vocabulary::bytes(), config);
    const auto get = [&](const std::string& regex, const std::string& tenant) {
        return compiler.get(StructuredOutputArgs::of(Type::kRegex, regex), tenant)->grammar;
    };
    const auto quiet = get("q", "quiet");
    for (int i = 0; i < 10; ++i) get("n" + std::to_string(i), "noisy");
    EXPECT_EQ(get("q", "quiet"), quiet);
    EXPECT_EQ(compiler.stats().entries, 2);
}

TEST(ConstraintCompiler, OneCompilationForAllThatAsk) {
    ConstraintCompiler compiler(Vocabulary::bytes());
    std::vector<std::thread> threads;
    std::vector<std::shared_ptr<const CompiledGrammar>> got(8);
    for (auto& g : got) {
        threads.emplace_back([&compiler, &g] {
            g = compiler.get(StructuredOutputArgs::of(Type::kJson, R"({"type":"object"})"))
                    ->grammar;
        });
    }
    for (std::thread& t : threads) t.join();
    for (const auto& g : got) EXPECT_EQ(g, got[0]);
    EXPECT_EQ(compiler.stats().misses, 1);
}

// ------------------------------------------------------------------ time and memory

/// Tokens like a language model's: single bytes and many words.
std::shared_ptr<const Vocabulary> words() {
    static const std::shared_ptr<const Vocabulary> all = [] {
        std::mt19937 random(3);
        std::set<std::string> seen;
        for (int b = 0; b < 256; ++b) seen.insert(std::string(1, static_cast<char>(b)));
        while (seen.size() < 20'000) {
            std::string word = random() % 2 == 0 ? " " : "";
            for (auto n = 1 + random() % 9; n > 0; --n)
                word += static_cast<char>('a' + random() % 26);
            seen.insert(word);
        }
        std::vector<std::string> tokens(seen.begin(), seen.end());
        tokens.emplace_back();
        return Vocabulary::of_tokens(tokens, static_cast<int32_t>(tokens.size()) - 1);
    }();
    return all;
}

std::string joined(int n, const std::string& between, const std::function<std::string(int)>& one) {
    std::string out;
    for (int i = 0; i < n; ++i) out += (i > 0 ? between : "") + one(i);
    return out;
}

/// All pass the bounds on size; each works in another place.
std::vector<std::pair<Type, std::string>> bombs() {
    const auto num = [](int i) { return std::to_string(i); };
    std::vector<std::pair<Type, std::string>> all;
    // Conditions of one place multiply: 256 alternatives, each copied a thousand times.
    const auto either = [&](const std::string& name) {
        return R"({"anyOf":[)" +
               joined(
                   16, ",", [&](int k) { return R"({"required":[")" + name + num(k) + "\"]}"; }) +
               "]}";
    };
    all.emplace_back(
        Type::kJson,
        R"({"allOf":[)" + either("a") + "," + either("b") + "," + joined(1000, ",", [&](int i) {
            return R"({"properties":{"p)" + num(i) + R"(":{"type":"null"}}})";
        }) + "]}");
    all.emplace_back(Type::kJson, R"({"allOf":[)" + joined(60, ",", [&](int i) {
                                      return R"({"pattern":"[a-z]{)" + num(i) +
                                             R"(,}x(.*[0-9]){2}"})";
                                  }) + "]}");
    // A rule that is inlined wherever it leads.
    all.emplace_back(
        Type::kEbnf,
        "root ::= " + joined(4000, " | ", [&](int i) { return "a \"" + num(i) + "\""; }) +
            "\na ::= " + joined(4000, " | ", [&](int i) { return "\"w" + num(i) + "\""; }));
    // Masks for every one of many states.
    all.emplace_back(Type::kRegex, joined(1000, "", [](int i) {
                         const auto letter = [](int k) { return static_cast<char>('a' + k % 26); };
                         return std::string("[^") + letter(i) + letter(i / 26) + "]?";
                     }));
    all.emplace_back(Type::kEbnf, joined(3000, "\n", [&](int i) {
                                      return (i == 0 ? "root" : "r" + num(i)) +
                                             " ::= [a-z]{0,9} r" + num((i + 1) % 3000) + " | \"" +
                                             num(i) + "\"";
                                  }) + "\nr0 ::= root");
    return all;
}

int64_t cpu_ms() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1'000'000;
}

TEST(ConstraintCompiler, BombsEndAfterTheirTime) {
    CompilerConfig config;
    config.compile_ms = 150;
    config.threads = 2;
    ConstraintCompiler compiler(words(), config);
    int ended = 0;
    for (const auto& [type, text] : bombs()) {
        const int64_t before = cpu_ms();
        const auto r = compiler.get(StructuredOutputArgs::of(type, text));
        const int64_t spent = cpu_ms() - before;
        // Between two looks at the clock, and what is destroyed in the end.
        constexpr int64_t kSlack = 400;
        EXPECT_LT(spent, config.compile_ms + kSlack) << text.substr(0, 80);
        if (r.ok()) continue;
        EXPECT_EQ(r.status().code(), StatusCode::kResourceExhausted)
            << text.substr(0, 80) << ": " << r.status().message();
        EXPECT_NE(r.status().message().find("so_args: compiling the constraint takes more than"),
                  std::string::npos)
            << r.status().message();
        ++ended;
        // Unharmed.
        const std::string next = "a{1," + std::to_string(ended) + "}";
        EXPECT_TRUE(compiler.get(StructuredOutputArgs::of(Type::kRegex, next)).ok());
    }
    EXPECT_EQ(ended, static_cast<int>(bombs().size()));
    // The verdict is kept.
    const int64_t before = compiler.stats().misses;
    EXPECT_FALSE(compiler.get(StructuredOutputArgs::of(bombs()[0].first, bombs()[0].second)).ok());
    EXPECT_EQ(compiler.stats().misses, before);
}

TEST(ConstraintCompiler, MemoryOnTheWayIsBounded) {
    CompilerConfig config;
    config.work_bytes = 200'000;
    ConstraintCompiler compiler(words(), config);
    const auto r = compiler.get(StructuredOutputArgs::of(bombs()[2].first, bombs()[2].second));
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(r.status().message().find("200000 bytes of memory"), std::string::npos)
        << r.status().message();
    EXPECT_TRUE(compiler.get(StructuredOutputArgs::of(Type::kRegex, "a{1,3}")).ok());
}

TEST(ConstraintCompiler, WhatIsKeptIsBounded) {
    CompilerConfig config;
    ConstraintCompiler wide(words(), config);
    const StructuredOutputArgs args = StructuredOutputArgs::of(Type::kRegex, "[a-z]{1,9}");
    config.grammar_bytes = wide.get(args)->grammar->memory_bytes();
    ConstraintCompiler exact(words(), config);
    EXPECT_TRUE(exact.get(args).ok());
    --config.grammar_bytes;
    ConstraintCompiler small(words(), config);
    const auto r = small.get(args);
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(r.status().message().find("are kept"), std::string::npos) << r.status().message();
}

TEST(ConstraintCompiler, NestedCountsDoNotWrapRound) {
    // 4 · 3 · 2^62 states are 12 · 2^62, which is −0 to 64 bits.
    std::string deep = "\"a\"";
    for (int i = 0; i < 62; ++i) deep = "(" + deep + "){2}";
    const std::string text = "root ::= a a a a \"bbbbbbbbbbbbbbbbbbbb\"\na ::= " + deep;
    const std::string inlined =
        "root ::= " + joined(4, " ", [&](int) { return deep; }) + " \"bbbbbbbbbbbbbbbbbbbb\"";
    for (const std::string& t : {text, inlined}) {
        const ConstraintReport r = check_constraint(StructuredOutputArgs::of(Type::kEbnf, t), {});
        ASSERT_FALSE(r.ok);
        EXPECT_NE(r.refused[0].reason.find("automaton states"), std::string::npos)
            << r.refused[0].reason;
    }
}

// ------------------------------------------------------------------ tenants

TEST(ConstraintCompiler, ATenantCannotTakeAllPlaces) {
    CompilerConfig config;
    config.compile_ms = 600;
    config.threads = 1;
    config.max_waiting = 5;
    ConstraintCompiler compiler(words(), config);
    // As many bombs as one tenant may have; each other text.
    std::atomic<int> done{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < config.max_waiting; ++i) {
        threads.emplace_back([&, i] {
            auto [type, text] = bombs()[0];
            text.insert(1, "\"title\":\"" + std::to_string(i) + "\",");
            EXPECT_EQ(compiler.get(StructuredOutputArgs::of(type, text), "bomber").status().code(),
                      StatusCode::kResourceExhausted);
            ++done;
        });
    }
    while (compiler.stats().misses < config.max_waiting) std::this_thread::yield();
    // One more is one too many; another tenant does not wait for them.
    EXPECT_EQ(compiler.get(StructuredOutputArgs::of(Type::kRegex, "x"), "bomber").status().code(),
              StatusCode::kQueueFull);
    EXPECT_TRUE(compiler.get(StructuredOutputArgs::of(Type::kRegex, "y"), "other").ok());
    EXPECT_EQ(done, 0);  // a place was left for it
    for (std::thread& t : threads) t.join();
    EXPECT_TRUE(compiler.get(StructuredOutputArgs::of(Type::kRegex, "x"), "bomber").ok());
}

TEST(ConstraintCompiler, AFullCacheDropsFromTheLargestTenant) {
    CompilerConfig config;
    config.cache_entries = 8;
    ConstraintCompiler compiler(Vocabulary::bytes(), config);
    const auto get = [&](const std::string& regex, const std::string& tenant) {
        return compiler.get(StructuredOutputArgs::of(Type::kRegex, regex), tenant)->grammar;
    };
    const auto first = get("q0", "quiet"), second = get("q1", "quiet");
    for (int i = 0; i < 50; ++i) get("n" + std::to_string(i), "noisy");
    EXPECT_EQ(compiler.stats().entries, 8);
    const int64_t misses = compiler.stats().misses;
    EXPECT_TRUE(compiler.ready(StructuredOutputArgs::of(Type::kRegex, "q0")));
    EXPECT_FALSE(compiler.ready(StructuredOutputArgs::of(Type::kRegex, "n0")));
    EXPECT_EQ(get("q0", "quiet"), first);
    EXPECT_EQ(get("q1", "quiet"), second);
    EXPECT_EQ(compiler.stats().misses, misses);
    // Many tenants with one each: the oldest goes.
    for (int i = 0; i < 20; ++i) get("t" + std::to_string(i), "tenant" + std::to_string(i));
    EXPECT_EQ(compiler.stats().entries, 8);
    EXPECT_TRUE(compiler.ready(StructuredOutputArgs::of(Type::kRegex, "t19")));
}

}  // namespace
}  // namespace deepinfer::grammar
