// ppl: teacher-forced negative log-likelihood per sample of a JSON Lines file.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "deepinfer/json_guard.h"
#include "deepinfer/judge.h"
#include "deepinfer/structured_check.h"
#include "deepinfer/tokenizer.h"

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
    CommonOptions common;
    std::string file, path = "prefill";
    bool token_logprobs = false;
    bool check_structured_output = false;
};

/// The ids of a batch line: prompt_token_ids as they are, prompt with BOS in front, messages
/// through the recipe.
Result<std::vector<int32_t>> line_ids(const ordered_json& line, const Tokenizer& tokenizer) {
    const auto invalid = [](const std::string& what) {
        return Status(StatusCode::kInvalidArgument, what);
    };
    if (!line.is_object()) return invalid("the line is no JSON object");
    if (line.contains("prompt_token_ids")) {
        const auto& ids = line["prompt_token_ids"];
        if (!ids.is_array()) return invalid("prompt_token_ids must be a list of ids");
        std::vector<int32_t> out;
        for (const auto& id : ids) {
            if (!id.is_number_integer() || id < 0 || id >= tokenizer.vocab_size())
                return invalid("prompt_token_ids holds " + id.dump() + ", expected ids below " +
                               std::to_string(tokenizer.vocab_size()));
            out.push_back(id.get<int32_t>());
        }
        return out;
    }
    if (line.contains("prompt")) {
        if (!line["prompt"].is_string()) return invalid("prompt must be a string");
        std::vector<int32_t> out = tokenizer.encode(line["prompt"].get<std::string>());
        if (out.empty() || out[0] != tokenizer.bos_id())
            out.insert(out.begin(), tokenizer.bos_id());
        return out;
    }
    if (line.contains("messages")) {
        ordered_json request{
            {"id", 0},
            {"protocol", "chat_completions"},
            {"body", {{"model", "deepseek-flash"}, {"messages", line["messages"]}}}};
        for (const char* key : {"tools", "thinking", "reasoning_effort"}) {
            if (line.contains(key)) request["body"][key] = line[key];
        }
        const ordered_json answer =
            ordered_json::parse(recipe::encode_json_line(tokenizer, request.dump()));
        if (answer.contains("error")) return invalid(answer["error"]["message"].get<std::string>());
        return answer["ids"].get<std::vector<int32_t>>();
    }
    return invalid("the line has none of prompt, prompt_token_ids, messages");
}

int run(Options& o) {
    if (o.path != "prefill" && o.path != "decode")
        return fail({StatusCode::kInvalidArgument,
                     "--path is '" + o.path + "', expected prefill or decode"});
    Result<std::string> dir = resolve_model(o.common);
    if (!dir.ok()) return fail(dir.status());
    if (std::filesystem::is_directory(o.file)) {
        return fail(
            {StatusCode::kInvalidFile, o.file + " is a directory, expected a JSON Lines file"});
    }
    std::ifstream in(o.file);
    if (!in) return fail({StatusCode::kInvalidFile, "cannot open " + o.file});
    Result<Tokenizer> tokenizer = Tokenizer::load(dir.value());
    if (!tokenizer.ok()) return fail(tokenizer.status());
    Scorer::Options options;
    options.model_dir = dir.value();
    options.backend = o.common.engine.backend;
    options.isa = o.common.engine.isa;
    options.threads = o.common.engine.threads;
    options.decode_path = o.path == "decode";
    Result<Scorer> scorer = Scorer::create(options);
    if (!scorer.ok()) return fail(scorer.status());

    install_interrupt_handler();
    ProgressLine progress(stderr_is_terminal() || o.common.progress);
    double total = 0;
    int64_t tokens = 0, number = 0, failed = 0;
    std::string text;
    while (!interrupted && std::getline(in, text)) {
        ++number;
        if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
        // A document that nests too deep is never built: copying or printing it would recurse.
        const bool deep = json_nests_deeper(text);
        const ordered_json line = deep ? ordered_json() : ordered_json::parse(text, nullptr, false);
        ordered_json out{
            {"id", line.is_object() && line.contains("id") ? line["id"] : ordered_json(number)}};
        Result<std::vector<int32_t>> ids =
            deep ? Result<std::vector<int32_t>>(
                       Status(StatusCode::kInvalidArgument,
                              "the line nests deeper than " + std::to_string(kMaxJsonDepth)))
                 : line_ids(line, tokenizer.value());
        Result<std::vector<double>> logprobs =
            ids.ok() ? scorer->log_probs(ids.value()) : Result<std::vector<double>>(ids.status());
        if (!logprobs.ok()) {
            ++failed;
            out["error"] = {{"code", status_code_name(logprobs.status().code())},
                            {"message", logprobs.status().message()}};
        } else {
            double nll = 0;
            for (double x : logprobs.value()) nll -= x;
            char hex[64];
            std::snprintf(hex, sizeof hex, "%a", nll);
            out["tokens"] = logprobs->size();
            out["nll"] = nll;
            out["nll_hex"] = hex;
            if (o.token_logprobs) out["logprobs"] = logprobs.value();
            total += nll;
            tokens += static_cast<int64_t>(logprobs->size());
        }
        std::printf("%s\n",
                    out.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
        progress.show(
            std::to_string(number) + " samples, perplexity " +
            std::to_string(tokens > 0 ? std::exp(total / static_cast<double>(tokens)) : 0.0));
    }
    progress.clear();
    if (!o.common.json) {
        std::fprintf(stderr,
                     "%lld samples (%lld failed), %lld tokens, perplexity %.4f\n",
                     static_cast<long long>(number),
                     static_cast<long long>(failed),
                     static_cast<long long>(tokens),
                     tokens > 0 ? std::exp(total / static_cast<double>(tokens)) : 0.0);
    }
    if (o.check_structured_output && !interrupted) {
        EngineConfig config = o.common.engine;
        config.model_dir = dir.value();
        const Result<std::unique_ptr<Engine>> engine = Engine::create(config);
        if (!engine.ok()) return fail(engine.status());
        const Result<StructuredCheck> check = check_structured_output(*engine.value());
        if (!check.ok()) return fail(check.status());
        std::printf("{\"structured_output\":%s}\n", structured_check_json(check.value()).c_str());
        failed += check->ok() ? 0 : 1;
    }
    return interrupted ? kExitInterrupted : failed > 0 ? kExitFailed : kExitOk;
}

}  // namespace

Run add_ppl(CLI::App& root) {
    auto o = std::make_shared<Options>();
    CLI::App* app = root.add_subcommand(
        "ppl", "Teacher-forced negative log-likelihood of each sample in a JSON Lines file");
    app->add_option("file", o->file, "Lines with prompt, prompt_token_ids or messages")->required();
    app->add_option("--path", o->path, "prefill (chunks) or decode (token by token)")
        ->capture_default_str();
    app->add_flag(
        "--token-logprobs", o->token_logprobs, "Add the log-probability of every predicted token");
    app->add_flag("--check-structured-output,--check_structured_output",
                  o->check_structured_output,
                  "Then three prompts under a regex, a JSON schema and a grammar; one more line");
    add_model_options(*app, o->common);
    return [o] { return run(*o); };
}

}  // namespace deepinfer::cli
