#include "command.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "deepinfer/checkpoint.h"

namespace deepinfer::cli {

std::atomic<bool> interrupted{false};
std::atomic<int> interrupting_signal{0};

int exit_code(const Status& status) {
    switch (status.code()) {
        case StatusCode::kOk:
            return kExitOk;
        case StatusCode::kInvalidArgument:
        case StatusCode::kUnimplemented:
        case StatusCode::kOutOfRange:
            return kExitUsage;
        case StatusCode::kInvalidFile:
        case StatusCode::kNotFound:
            return kExitInvalidFile;
        case StatusCode::kCancelled:
            return kExitInterrupted;
        default:
            return kExitFailed;
    }
}

int fail(const Status& status) {
    std::fprintf(stderr, "deepinfer: %s\n", status.message().c_str());
    return exit_code(status);
}

bool stderr_is_terminal() {
    return isatty(STDERR_FILENO) == 1;
}
bool stdout_is_terminal() {
    return isatty(STDOUT_FILENO) == 1;
}

namespace {

void on_signal(int signal) {
    interrupting_signal = signal;
    if (interrupted.exchange(true)) {
        std::signal(signal, SIG_DFL);  // a second Ctrl-C means it
        std::raise(signal);
    }
}

/// A size as bytes or with a binary suffix: 1048576, 2MiB, 1.5GiB.
std::string parse_size(std::string& text) {
    static constexpr struct {
        const char* suffix;
        double factor;
    } kUnits[] = {{"KiB", 1024.0},
                  {"MiB", 1048576.0},
                  {"GiB", 1073741824.0},
                  {"TiB", 1099511627776.0},
                  {"B", 1.0},
                  {"", 1.0}};
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    for (const auto& unit : kUnits) {
        if (end != text.c_str() && std::strcmp(end, unit.suffix) == 0 && value >= 0 &&
            value * unit.factor < 9e18) {
            text = std::to_string(static_cast<long long>(value * unit.factor));
            return {};
        }
    }
    return "'" + text + "' is no size; write bytes or a number with KiB, MiB, GiB";
}

}  // namespace

void install_interrupt_handler() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
}

void add_model_options(CLI::App& app, CommonOptions& o) {
    Result<EngineConfig> env = EngineConfig::from_environment();
    if (env.ok()) o.engine = std::move(env).value();
    o.engine.model_dir.clear();
    app.add_option("--model",
                   o.model,
                   "Checkpoint directory or hub id (default: DEEPINFER_HF_MODEL_DIR, then the "
                   "demonstration checkpoint)");
    app.add_option(
        "--synthetic",
        o.synthetic,
        "NAME[:SEED]: generated weights of a geometry (cpu-slice, slice-e48) or a config.json");
    app.add_option("--backend",
                   o.engine.backend,
                   "cpu, cuda or auto (DEEPINFER_ACCELERATOR); ref and exact are the slow twins")
        ->capture_default_str();
    app.add_option("--threads",
                   o.engine.threads,
                   "CPU threads (DEEPINFER_THREADS; 0 = what the container allows)")
        ->capture_default_str();
    app.add_option("--isa", o.engine.isa, "Force a lower CPU instruction set (DEEPINFER_ISA)");
    app.add_flag(
        "--json", o.json, "One JSON document (or JSON Lines where said) on stdout, nothing else");
    app.add_flag(
        "--progress", o.progress, "Progress and statistics on stderr even when it is no terminal");
}

void add_engine_options(CLI::App& app, CommonOptions& o) {
    EngineConfig& e = o.engine;
    app.add_option("--batch-invariant",
                   e.batch_invariant,
                   "0 or 1: results depend on the request alone (DEEPINFER_BATCH_INVARIANT)")
        ->capture_default_str();
    app.add_option("--max-num-seqs", e.max_num_seqs, "Sequences that may run at once")
        ->capture_default_str();
    app.add_option("--max-num-batched-tokens", e.max_num_batched_tokens, "Rows of one step")
        ->capture_default_str();
    app.add_option(
           "--max-model-len", e.max_model_len, "Longest prompt plus output (0 = the checkpoint's)")
        ->capture_default_str();
    app.add_option("--kv-cache-bytes",
                   e.kv_cache_bytes,
                   "Pool of compressed KV and index keys, bytes or 2MiB, 1.5GiB (0 = choose)")
        ->transform(CLI::Validator(parse_size, "SIZE"));
    app.add_option(
           "--async-scheduling", e.async_scheduling, "0 or 1: plan a step while the last one runs")
        ->capture_default_str();
    app.add_option(
           "--prefix-caching", e.prefix_caching, "0 or 1: reuse blocks of equal prompt beginnings")
        ->capture_default_str();
    app.add_option("--image-workers", e.image_workers, "Pictures decoded at the same time")
        ->capture_default_str();
    app.add_option("--image-processes",
                   e.image_processes,
                   "1: decode pictures in sandboxed processes; 0: in threads")
        ->capture_default_str();
    app.add_option(
           "--image-bytes", e.image_bytes, "Memory of pictures in flight, bytes or 2MiB, 1.5GiB")
        ->transform(CLI::Validator(parse_size, "SIZE"));
    app.add_option("--image-cache-bytes",
                   e.image_cache_bytes,
                   "Encoded pictures kept for later use, bytes or 2MiB, 1.5GiB")
        ->transform(CLI::Validator(parse_size, "SIZE"));
    app.add_option("--encoder-patches",
                   e.encoder_patches,
                   "Patches encoded in one step (0 = 1521 on a CPU, else 16384)")
        ->capture_default_str();
    app.add_option("--max-image-tokens",
                   e.max_image_tokens,
                   "Most tokens of one picture (0 = the checkpoint's)")
        ->capture_default_str();
    app.add_option("--step-log", e.step_log, "Append one JSON line a step to this file");
    app.add_option("--nextn",
                   e.nextn,
                   "Draft tokens that a step verifies per sequence, 0 to the checkpoint's "
                   "dspark_block_size, which is the default (DEEPINFER_USE_NEXTN_DECODE)");
    app.add_option("--varlen",
                   e.varlen,
                   "0 or 1: as many drafts as confidences and measured costs say "
                   "(DEEPINFER_ENABLE_MTP_VARLEN)")
        ->check(CLI::IsMember({"0", "1"}))
        ->capture_default_str();
    app.add_option(
        "--spec-sampling",
        e.spec_sampling,
        "Which drafts stand: coupled (the tokens of decoding without drafts; default), or, "
        "without --batch-invariant, rejection, argmax, block (DEEPINFER_SPEC_SAMPLING)");
    app.add_option(
           "--spec-budget", e.spec_budget, "varlen: model, full, or threshold:x by survival")
        ->capture_default_str();
    app.add_option("--spec-auto-off",
                   e.spec_auto_off,
                   "0 or 1: stop drafting where it makes decoding slower")
        ->check(CLI::IsMember({"0", "1"}))
        ->capture_default_str();
    app.add_option("--spec-calibration",
                   e.spec_calibration,
                   "File that keeps the calibration of the drafts' confidences");
    app.add_option("--truncation",
                   e.truncation,
                   "Prompt rows of the decoder half: off, compact (the last --keep-tokens rows, an "
                   "approximation) or exact (fewer rows, the bits of off; default)");
    app.add_option("--keep-tokens",
                   e.keep_tokens,
                   "Rows that compact and bounded replay keep (0 = window + 2*(1+block))");
    app.add_option("--replay",
                   e.replay,
                   "Window state after a prefix hit: stored (default), exact, or bounded with "
                   "--batch-invariant 0");
    app.add_option("--stored-windows",
                   e.stored_windows,
                   "Window states that --replay stored keeps (0 = 32 MiB of them)");
    app.add_option("--ep", e.ep, "Expert-parallel ranks (this version: 1)");
    app.add_option("--dp", e.dp, "Attention data-parallel ranks (this version: 1)");
    app.add_option("--cp", e.cp, "Context-parallel ranks (this version: 1)");
}

void add_sampling_options(CLI::App& app, SamplingOptions& o) {
    SamplingParams& p = o.params;
    app.add_option("--temperature", p.temperature, "Below 1e-5: greedy")->capture_default_str();
    app.add_option("--top-k", p.top_k, "Keep the k likeliest tokens (0 = off)");
    app.add_option("--top-p", p.top_p, "Keep the likeliest tokens up to this probability")
        ->capture_default_str();
    app.add_option("--min-p", p.min_p, "Drop tokens less likely than this share of the likeliest");
    app.add_option(
        "--repetition-penalty", p.repetition_penalty, "Over prompt and output (1 = off)");
    app.add_option(
        "--frequency-penalty", p.frequency_penalty, "Per earlier occurrence in the output");
    app.add_option("--presence-penalty", p.presence_penalty, "Once, if in the output");
    app.add_option(
        "--seed", o.seed, "Same seed, same text (default: drawn, and reported with --json)");
    app.add_option(
        "--max-tokens", o.max_tokens, "Most tokens to generate (default: what the context leaves)");
    app.add_option("--min-tokens", p.min_tokens, "Ban the end before this many tokens");
    app.add_option("--stop", p.stop, "End before this text (repeatable)")->allow_extra_args(false);
    app.add_option("--stop-token-ids",
                   p.stop_token_ids,
                   "End at one of these ids (comma-separated or repeated)")
        ->allow_extra_args(false)
        ->delimiter(',');
    app.add_flag("--ignore-eos", o.ignore_eos, "Go on after the end-of-sequence token");
    app.add_option("--n", p.n, "Answers to one prompt");
    app.add_option("--logprobs",
                   o.logprobs,
                   "Report log-probabilities of this many likeliest tokens (with --json)");
    app.add_option("--thinking", o.thinking, "0 or 1: reason before answering")
        ->capture_default_str();
    app.add_option("--effort", o.effort, "minimal, low, medium, high, xhigh, max, or 1..100")
        ->capture_default_str();
    add_constraint_options(app, o.constraint);
}

Status SamplingOptions::apply(recipe::Conversation* conversation) {
    Result<StructuredOutputArgs> so_args = constraint.read();
    if (!so_args.ok()) return so_args.status();
    params.so_args = std::move(so_args).value();
    params.seq_seed = seed;
    params.max_tokens = max_tokens;
    if (logprobs && *logprobs < 0) {
        return {StatusCode::kInvalidArgument,
                "--logprobs is " + std::to_string(*logprobs) +
                    ", expected 0 (the chosen token alone) or the number of likeliest tokens"};
    }
    params.logprobs = logprobs;
    params.ignore_eos = ignore_eos;
    if (conversation == nullptr) return {};
    conversation->thinking = thinking;
    if (!effort.empty() && effort.find_first_not_of("0123456789") == std::string::npos) {
        const int value = effort.size() > 3 ? 0 : std::stoi(effort);
        if (value < 1 || value > 100)
            return {StatusCode::kInvalidArgument, "--effort " + effort + " is outside 1..100"};
        conversation->effort = recipe::Effort::from_number(value);
        return {};
    }
    const auto word = recipe::Effort::from_word(effort);
    if (!word)
        return {StatusCode::kInvalidArgument,
                "--effort '" + effort +
                    "' is neither a number 1..100 nor minimal, low, medium, high, xhigh, max, "
                    "ultra, none"};
    conversation->effort = *word;
    if (word->value == 0) conversation->thinking = false;
    return {};
}

namespace {

Status check_environment() {
    for (const std::string& name : unknown_env_flags()) {
        std::fprintf(
            stderr, "deepinfer: warning: %s is set but no such switch exists\n", name.c_str());
    }
    return EngineConfig::from_environment().status();
}

}  // namespace

Result<std::string> resolve_model(const CommonOptions& o) {
    if (Status s = check_environment(); !s.ok()) return s;
    if (!o.synthetic.empty())
        return Status(StatusCode::kUnimplemented,
                      "--synthetic: generated weights have no text and no files; generate and "
                      "bench run them");
    const char* env_dir = std::getenv("DEEPINFER_HF_MODEL_DIR");
    return resolve_model_dir(o.model, env_dir != nullptr ? env_dir : "");
}

Status choose_model(CommonOptions* o) {
    if (o->synthetic.empty()) {
        Result<std::string> dir = resolve_model(*o);
        if (!dir.ok()) return dir.status();
        o->engine.model_dir = dir.value();
        return {};
    }
    if (!o->model.empty())
        return {StatusCode::kInvalidArgument, "--model and --synthetic are both given"};
    o->engine.synthetic = o->synthetic;
    return check_environment();
}

void ProgressLine::show(const std::string& text) {
    if (!enabled_) return;
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
    shown_ = true;
}

void ProgressLine::clear() {
    if (!shown_) return;
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
    shown_ = false;
}

// ---- answer
// --------------------------------------------------------------------------------------------

AnswerPrinter::AnswerPrinter(recipe::ParsingOptions options, bool quiet)
    : parser_(std::move(options)), quiet_(quiet), color_(!quiet && stdout_is_terminal()) {}

bool AnswerPrinter::push(const std::string& text) {
    std::vector<recipe::Delta> deltas;
    parser_.push(text, &deltas);
    print(deltas);
    return !parser_.finished();
}

void AnswerPrinter::finish(recipe::FinishReason reason) {
    std::vector<recipe::Delta> deltas;
    parser_.finish(reason, &deltas);
    print(deltas);
    if (quiet_) return;
    if (in_reasoning_) switch_to(false);
    if (wrote_content_ || wrote_reasoning_) std::fputs("\n", stdout);
    std::fflush(stdout);
}

void AnswerPrinter::switch_to(bool reasoning) {
    if (in_reasoning_ == reasoning) return;
    in_reasoning_ = reasoning;
    // On a terminal reasoning is dim; in a pipe stdout carries the answer alone.
    if (color_) std::fputs(reasoning ? "\033[2m" : "\033[0m\n\n", stdout);
}

void AnswerPrinter::print(const std::vector<recipe::Delta>& deltas) {
    for (const recipe::Delta& d : deltas) {
        const bool reasoning = d.kind == recipe::Delta::Kind::kReasoning;
        (reasoning ? reasoning_ : content_) += d.text;
        if (quiet_ || (reasoning && !color_)) continue;
        switch_to(reasoning);
        (reasoning ? wrote_reasoning_ : wrote_content_) = true;
        std::fwrite(d.text.data(), 1, d.text.size(), stdout);
    }
    if (!quiet_) std::fflush(stdout);
}

recipe::Message user_message(const std::string& text, size_t num_images) {
    recipe::Message message = recipe::Message::user(text);
    recipe::ContentBlock picture;
    picture.image.emplace();
    message.content.insert(message.content.begin(), num_images, picture);
    return message;
}

}  // namespace deepinfer::cli
