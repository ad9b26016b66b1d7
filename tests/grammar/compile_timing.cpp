// Compilation times of our lowering and of the library's own schema converter, on the same schemas
// with the same vocabulary, threads and kind of cache.
//
// usage: compile_timing TOKENIZER_DIR THREADS warm|cold < lines
//
// One {"json": schema} a line → a line "ours_ms library_ms lower_ms schema" (−1: refused), and
// percentiles at the end: of all schemas that ours takes, and of those that both take. The library
// ignores keywords that it does not know, so its grammars are often wider than the schema. warm:
// rules that are alike share their masks across schemas, as in an engine; cold: every schema is the
// first one.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepinfer/structured_output.h"
#include "grammar/lowering.h"
#include "grammar/xgrammar_engine.h"

namespace deepinfer::grammar {
namespace {

double now_ms() {
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void print_percentiles(const char* what, std::vector<double> ms) {
    if (ms.empty()) return;
    std::sort(ms.begin(), ms.end());
    const auto at = [&](double q) {
        return ms[std::min(ms.size() - 1, static_cast<size_t>(q * static_cast<double>(ms.size())))];
    };
    std::fprintf(stderr,
                 "%-28s n %4zu  p50 %7.1f  p90 %7.1f  p99 %7.1f  max %7.1f ms\n",
                 what,
                 ms.size(),
                 at(0.5),
                 at(0.9),
                 at(0.99),
                 ms.back());
}

/// The library as it comes, with the vocabulary that the gate gives it.
class Library {
  public:
    Library(const Tokenizer& t, int threads) : info_(tokens_of(t)), compiler_(info_, threads) {}

    void forget() { compiler_.ClearCache(); }
    /// Milliseconds, −1: refused.
    double compile(const std::string& schema) {
        const double before = now_ms();
        try {
            const auto whole = compiler_.CompileJSONSchema(
                schema, true, std::nullopt, std::nullopt, true, kMostBlanks);
            return whole.MemorySizeBytes() > 0 ? now_ms() - before : -1;
        } catch (const std::exception&) {
            return -1;
        }
    }

  private:
    static constexpr int kMostBlanks = 20;
    static xgrammar::TokenizerInfo tokens_of(const Tokenizer& t) {
        std::vector<std::string> tokens(static_cast<size_t>(t.vocab_size()));
        for (int32_t v = 0; v < t.vocab_size(); ++v) {
            if (!t.is_added(v)) tokens[static_cast<size_t>(v)] = std::string(t.token_bytes(v));
        }
        return xgrammar::TokenizerInfo(tokens,
                                       xgrammar::VocabType::RAW,
                                       static_cast<int>(t.vocab_size()),
                                       std::vector<int32_t>{t.eos_id()});
    }
    xgrammar::TokenizerInfo info_;
    xgrammar::GrammarCompiler compiler_;
};

int run(const std::string& dir, int threads, bool cold) {
    const Result<Tokenizer> tokenizer = Tokenizer::load(dir);
    if (!tokenizer.ok()) {
        std::cerr << tokenizer.status().message() << "\n";
        return 3;
    }
    const Tokenizer& t = tokenizer.value();
    auto vocabulary = Vocabulary::of(t, t.vocab_size(), t.eos_id());
    Library library(t, threads);
    std::vector<double> ours_all, ours_both, library_both, lowering;
    std::string line;
    while (std::getline(std::cin, line)) {
        const Result<StructuredOutputArgs> args = structured_output_from_json(line);
        if (!args.ok()) continue;
        if (cold) {
            vocabulary = Vocabulary::of(t, t.vocab_size(), t.eos_id());
            library.forget();
        }
        double ours = -1, lowered = -1;
        const double before = now_ms();
        try {
            const Lowered form = lower(args.value());
            lowered = now_ms() - before;
            if (CompiledGrammar::compile(vocabulary, form.ebnf, threads).ok())
                ours = now_ms() - before;
        } catch (const Refusal&) {
        }
        const double theirs = library.compile(args.value().value);
        std::printf("%8.2f %8.2f %8.2f %s\n", ours, theirs, lowered, line.c_str());
        if (ours < 0) continue;
        ours_all.push_back(ours);
        lowering.push_back(lowered);
        if (theirs < 0) continue;
        ours_both.push_back(ours);
        library_both.push_back(theirs);
    }
    print_percentiles("ours, all it takes", ours_all);
    print_percentiles("  of that lowering", lowering);
    print_percentiles("ours, taken by both", ours_both);
    print_percentiles("library, taken by both", library_both);
    return 0;
}

}  // namespace
}  // namespace deepinfer::grammar

int main(int argc, char** argv) {
    const std::string kind = argc == 4 ? argv[3] : "";
    if (kind != "warm" && kind != "cold") {
        std::cerr << "usage: compile_timing TOKENIZER_DIR THREADS warm|cold < so_args lines\n";
        return 2;
    }
    return deepinfer::grammar::run(argv[1], std::stoi(argv[2]), kind == "cold");
}
