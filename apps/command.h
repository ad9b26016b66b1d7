// What every command shares: options, exit codes, terminal output. One file per command
// (cmd_*.cpp).
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/config.h"
#include "deepinfer/recipe.h"
#include "deepinfer/recipe_protocol.h"
#include "deepinfer/sampling_params.h"
#include "deepinfer/status.h"

namespace deepinfer::cli {

// Exit codes of the program (documented in `deepinfer help`).
constexpr int kExitOk = 0;           ///< done
constexpr int kExitFailed = 1;       ///< the work failed
constexpr int kExitUsage = 2;        ///< wrong usage or configuration
constexpr int kExitInvalidFile = 3;  ///< the model directory or an input file is invalid
constexpr int kExitInterrupted = 130;

int exit_code(const Status& status);
/// Prints "deepinfer: <sentence>" on stderr and returns the exit code.
int fail(const Status& status);

/// Common options of cli.md, already merged with DEEPINFER_* variables.
struct CommonOptions {
    EngineConfig engine;    ///< flags win over the environment, which wins over defaults
    std::string model;      ///< --model as given
    std::string synthetic;  ///< --synthetic as given
    bool json = false;
    bool progress = false;  ///< statistics on stderr although it is no terminal
};

/// Adds --model, --backend, --threads, … to a command.
void add_model_options(CLI::App& app, CommonOptions& options);
/// Adds the engine's limits and switches (scheduling, caches, speculation, layout).
void add_engine_options(CLI::App& app, CommonOptions& options);

/// One constraint of the command line: --regex, --json-schema, --ebnf, --choice, --structural-tag.
struct ConstraintOptions {
    std::string regex, json_schema, ebnf, choice, structural_tag;
    bool strict = true;
    bool any_whitespace = true;

    /// Reads the files. Empty arguments when none was given; kInvalidArgument when several were.
    Result<StructuredOutputArgs> read() const;
};
void add_constraint_options(CLI::App& app, ConstraintOptions& options);

struct SamplingOptions {
    SamplingParams params;
    bool thinking = true;
    std::string effort = "high";
    bool ignore_eos = false;
    std::optional<uint64_t> seed;
    std::optional<int64_t> max_tokens;
    std::optional<int> logprobs;
    ConstraintOptions constraint;

    /// Checks and completes `params` and fills the conversation's thinking and effort.
    Status apply(recipe::Conversation* conversation);
};
void add_sampling_options(CLI::App& app, SamplingOptions& options);

/// --model, DEEPINFER_HF_MODEL_DIR or the demonstration checkpoint; reports unknown DEEPINFER_*
/// names on stderr. For commands that need text or files: --synthetic is refused.
Result<std::string> resolve_model(const CommonOptions& options);
/// The same for commands that can also run generated weights: sets engine.model_dir or
/// engine.synthetic.
Status choose_model(CommonOptions* options);

/// True if stderr (stdout) is a terminal.
bool stderr_is_terminal();
bool stdout_is_terminal();

/// Set by Ctrl-C (SIGINT) and SIGTERM once install_interrupt_handler() was called; a second signal
/// kills.
extern std::atomic<bool> interrupted;
/// The signal that set it.
extern std::atomic<int> interrupting_signal;
void install_interrupt_handler();

/// One status line on stderr that rewrites itself; silent unless `enabled`.
class ProgressLine {
  public:
    explicit ProgressLine(bool enabled) : enabled_(enabled) {}
    ~ProgressLine() { clear(); }
    void show(const std::string& text);
    void clear();

  private:
    bool enabled_;
    bool shown_ = false;
};

/// Splits generated text into reasoning and content while it streams.
class AnswerPrinter {
  public:
    /// `quiet` keeps everything (for --json) and prints nothing.
    AnswerPrinter(recipe::ParsingOptions options, bool quiet);

    /// Returns false when the answer is complete (a stop of the parser).
    bool push(const std::string& text);
    void finish(recipe::FinishReason reason);
    /// Pieces that somebody else has split already.
    void show(const std::vector<recipe::Delta>& deltas) { print(deltas); }

    const std::string& reasoning() const { return reasoning_; }
    const std::string& content() const { return content_; }
    recipe::StreamParser& parser() { return parser_; }

  private:
    void print(const std::vector<recipe::Delta>& deltas);
    void switch_to(bool reasoning);

    recipe::StreamParser parser_;
    bool quiet_, color_;
    bool in_reasoning_ = false, wrote_content_ = false, wrote_reasoning_ = false;
    std::string reasoning_, content_;
};

// The commands. Each adds its subcommand; the returned function runs it after parsing.
using Run = std::function<int()>;
/// What a constraint that is not strict left out, on stderr.
void show_constraint_notes(const std::vector<std::string>& notes);
/// A user's message with pictures in front of its text; their bytes travel beside it, in order.
recipe::Message user_message(const std::string& text, size_t num_images);

Run add_generate(CLI::App& root);
Run add_chat(CLI::App& root);
Run add_serve(CLI::App& root);
Run add_batch(CLI::App& root);
Run add_bench(CLI::App& root);
Run add_check_constraint(CLI::App& root);
Run add_inspect(CLI::App& root);
Run add_forward(CLI::App& root);
Run add_ppl(CLI::App& root);
Run add_encode(CLI::App& root);
Run add_parse(CLI::App& root);
Run add_tokenize(CLI::App& root);
Run add_detokenize(CLI::App& root);

}  // namespace deepinfer::cli
