#include "bench_grammar.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <mutex>

#include "bench_record.h"
#include "deepinfer/structured_output.h"

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

const char* const kBuiltIn[] = {
    R"({"json_object":true})",
    R"({"json":{"type":"object","properties":{"city":{"type":"string","minLength":1},"population":{"type":"integer","minimum":1},"tags":{"type":"array","items":{"type":"string"},"maxItems":5}},"required":["city","population"],"additionalProperties":false}})",
    R"({"json":{"type":"array","items":{"anyOf":[{"type":"integer"},{"type":"string","maxLength":80},{"type":"null"}]}}})",
    R"({"json":{"type":"string","format":"date-time"}})",
    R"({"json":{"type":"string","pattern":"^[a-z]+(-[a-z]+)*$"}})",
    R"({"json":{"$defs":{"n":{"type":"object","properties":{"v":{"type":"number"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}},"$ref":"#/$defs/n"}})",
    R"x({"regex":"[a-z]{2,8}(\\.[a-z]{2,8})*@[a-z]{2,8}\\.(com|org)"})x",
    R"({"regex":".*foo.*"})",
    R"x({"ebnf":"root ::= expr\nexpr ::= term ([+-] term)*\nterm ::= factor ([*/] factor)*\nfactor ::= [0-9]+ | \"(\" expr \")\""})x",
    R"({"choice":["yes","no","maybe"]})"};

Result<std::vector<std::string>> read_cases(const std::string& path) {
    std::vector<std::string> out;
    if (path.empty()) return std::vector<std::string>(std::begin(kBuiltIn), std::end(kBuiltIn));
    std::ifstream file(path);
    if (!file) return Status(StatusCode::kNotFound, "--cases " + path + " cannot be read");
    std::string line;
    while (std::getline(file, line)) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const Result<std::string> inner = json_member_text(line, {"so_args"});
        out.push_back(inner.ok() ? inner.value() : line);
    }
    return out;
}

/// Tokens per second of `batch` requests that generate for `tokens` tokens each.
Result<double> decode_rate(Engine& engine, int64_t batch, int64_t tokens, bool constrained) {
    const auto before = std::chrono::steady_clock::now();
    int64_t total = 0;
    std::mutex mutex;
    Status failed;
    for (int64_t i = 0; i < batch; ++i) {
        Request r;
        r.prompt_token_ids =
            engine.tokenizer().encode("Write a list of words, number " + std::to_string(i) + ": ");
        r.sampling.max_tokens = tokens;
        r.sampling.seq_seed = static_cast<uint64_t>(i);
        if (constrained) {  // never complete within that many tokens
            r.sampling.so_args = StructuredOutputArgs::of(
                StructuredOutputArgs::Type::kJson,
                R"({"type":"array","items":{"type":"string"},"minItems":5000})");
        } else {
            r.sampling.ignore_eos = true;
        }
        RequestCallbacks callbacks;
        callbacks.on_output = [&](const Output& o) {
            const std::lock_guard<std::mutex> lock(mutex);
            total += static_cast<int64_t>(o.token_ids.size());
            return true;
        };
        if (const auto number = engine.submit(std::move(r), callbacks); !number.ok())
            failed = number.status();
    }
    engine.wait_idle();
    if (!failed.ok()) return failed;
    return static_cast<double>(total) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

}  // namespace

void add_bench_grammar_options(CLI::App& app, GrammarBench& g) {
    app.add_option(
        "--cases", g.cases, "grammar: JSON Lines of constraints (default: a built-in set)");
    app.add_option(
        "--tokenizer", g.tokenizer, "grammar: tokenizer.json or its folder (default: the model's)");
    app.add_option("--outputs", g.outputs, "grammar: random outputs per constraint")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--random-tokens", g.tokens, "grammar: tokens of an output")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option(
           "--decode-batch", g.batch, "grammar: requests of the decode comparison (0 = none)")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
}

Status run_bench_grammar(Engine& engine,
                         const GrammarBench& o,
                         const std::string& tag,
                         const std::string& note,
                         const std::function<Status(const ordered_json&)>& write) {
    const auto start = [&](ordered_json settings) {
        return start_record("grammar", tag, note, engine, std::move(settings));
    };
    Result<std::vector<std::string>> cases = read_cases(o.cases);
    if (!cases.ok()) return cases.status();
    Tokenizer tokenizer = engine.tokenizer();
    if (!o.tokenizer.empty()) {
        Result<Tokenizer> other = Tokenizer::load(o.tokenizer);
        if (!other.ok()) return other.status();
        tokenizer = std::move(other).value();
    }
    const ordered_json settings = {
        {"outputs", o.outputs}, {"tokens", o.tokens}, {"vocab_size", tokenizer.vocab_size()}};
    Sample compile_ms, mask_us, accept_us;
    int64_t refused = 0;
    for (const std::string& text : cases.value()) {
        const Result<StructuredOutputArgs> args = structured_output_from_json(text);
        ordered_json r = start(settings);
        r["part"] = "constraint";
        r["constraint"] = text.substr(0, 200);
        Status s = args.ok() ? Status() : args.status();
        if (s.ok()) {
            const Result<ConstraintTiming> t = time_constraint(tokenizer,
                                                               args.value(),
                                                               static_cast<int>(o.outputs),
                                                               static_cast<int>(o.tokens),
                                                               1,
                                                               engine.config().threads);
            s = t.ok() ? Status() : t.status();
            if (s.ok()) {
                Sample masks;
                for (const double us : t->mask_us) masks.add(us);
                for (const double us : t->accept_us) accept_us.add(us);
                mask_us.add_all(masks);
                compile_ms.add(t->lower_ms + t->compile_ms);
                r["compile_ms"] = t->lower_ms + t->compile_ms;
                r["lower_ms"] = t->lower_ms;
                r["memory_bytes"] = t->memory_bytes;
                masks.put_percentiles("mask", "_us", &r);
            }
        }
        if (!s.ok()) {
            ++refused;
            r["refused"] = s.message();
        }
        DI_RETURN_IF_ERROR(write(r));
    }
    ordered_json all = start(settings);
    all["part"] = "all";
    all["constraints"] = compile_ms.size();
    all["refused"] = refused;
    compile_ms.put_percentiles("compile", "_ms", &all);
    mask_us.put_percentiles("mask", "_us", &all);
    if (!mask_us.empty()) all["mask_max_us"] = mask_us.quantile(1);
    accept_us.put_percentiles("accept", "_us", &all);
    DI_RETURN_IF_ERROR(write(all));
    if (o.batch == 0) return {};
    Sample free, constrained, share;
    for (int64_t i = -1; i < o.repeat; ++i) {
        const Result<double> without = decode_rate(engine, o.batch, o.tokens, false);
        if (!without.ok()) return without.status();
        const Result<double> with = decode_rate(engine, o.batch, o.tokens, true);
        if (!with.ok()) return with.status();
        if (i < 0) continue;  // compiles, and warms up
        free.add(without.value());
        constrained.add(with.value());
        share.add(with.value() / without.value());
    }
    ordered_json d = start({{"batch", o.batch}, {"tokens", o.tokens}, {"repeat", o.repeat}});
    d["part"] = "decode";
    free.put_spread("free_tokens_per_s", "", &d);
    constrained.put_spread("constrained_tokens_per_s", "", &d);
    share.put_spread("share", "", &d);
    return write(d);
}

}  // namespace deepinfer::cli
