// Measurement of constraints, for `deepinfer bench grammar`.
#include <chrono>
#include <map>
#include <mutex>
#include <random>

#include "deepinfer/structured_output.h"
#include "grammar/lowering.h"
#include "grammar/token_matcher.h"

namespace deepinfer {
namespace {

double now_us() {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

Result<ConstraintTiming> time_constraint(const Tokenizer& tokenizer,
                                         const StructuredOutputArgs& args,
                                         int num_outputs,
                                         int max_tokens,
                                         uint64_t seed,
                                         int threads) {
    using namespace grammar;
    ConstraintTiming t;
    double before = now_us();
    // One vocabulary for the calls that follow each other with the same tokenizer.
    static std::mutex mutex;
    static std::shared_ptr<const Vocabulary> vocabulary;
    static std::string_view last;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const std::string_view key = tokenizer.token_bytes(0);
        if (vocabulary == nullptr || key.data() != last.data() ||
            vocabulary->width() != tokenizer.vocab_size()) {
            vocabulary = Vocabulary::of(tokenizer, tokenizer.vocab_size(), tokenizer.eos_id());
            last = key;
        }
    }
    t.vocabulary_ms = (now_us() - before) / 1000;
    std::string ebnf;
    before = now_us();
    try {
        ebnf = lower(args).ebnf;
    } catch (const Refusal& r) {
        return Status(StatusCode::kInvalidArgument, refusal_sentence(r));
    }
    const double lowered = now_us();
    const auto compiled = CompiledGrammar::compile(vocabulary, ebnf, threads);
    if (!compiled.ok()) return compiled.status();
    t.lower_ms = (lowered - before) / 1000;
    t.compile_ms = (now_us() - lowered) / 1000;
    t.memory_bytes = compiled.value()->memory_bytes();
    std::mt19937_64 random(seed);
    for (int i = 0; i < num_outputs; ++i) {
        TokenMatcher matcher(compiled.value(), false);
        for (int step = 0; step < max_tokens; ++step) {
            before = now_us();
            const std::vector<uint32_t> mask = matcher.mask();
            t.mask_us.push_back(now_us() - before);
            std::vector<int32_t> allowed;
            for (int32_t v = 0; v < vocabulary->width(); ++v) {
                if ((mask[static_cast<size_t>(v) / 32] >> (v % 32) & 1) != 0) allowed.push_back(v);
            }
            if (allowed.empty())
                return Status(StatusCode::kInternal, "no token was allowed before the end");
            const int32_t token = allowed[random() % allowed.size()];
            if (token == vocabulary->eos()) break;
            before = now_us();
            if (!matcher.accept(token))
                return Status(StatusCode::kInternal, "an allowed token was refused");
            t.accept_us.push_back(now_us() - before);
        }
    }
    return t;
}

}  // namespace deepinfer
