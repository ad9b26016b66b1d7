// chat: a conversation at a terminal (or over a pipe, one line a turn).
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>

#include "command.h"
#include "deepinfer/engine.h"
#include "remote_chat.h"

namespace deepinfer::cli {
namespace {

constexpr const char* kHelp =
    "  /system TEXT   start over with this system message\n"
    "  /image FILE    show this picture with the next message\n"
    "  /clear         forget the conversation (the system message stays)\n"
    "  /think 0|1     reason before answering, or not\n"
    "  /help          this list\n"
    "  /exit          leave (so does Ctrl-D); Ctrl-C ends an answer\n";

struct Options {
    CommonOptions common;
    SamplingOptions sampling;
    std::string system;
    RemoteOptions remote;
    std::vector<std::string> images;
};

/// Lines from a terminal with editing and history, or plain lines from a pipe.
class LineReader {
  public:
    LineReader() {
        if (isatty(STDIN_FILENO) != 1 || !stdout_is_terminal()) return;
        // libedit drops every byte it takes for no character: it must know that the terminal speaks
        // UTF-8.
        const char* locale = std::setlocale(LC_CTYPE, "");
        if (locale == nullptr || std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
            std::setlocale(LC_CTYPE, "C.UTF-8");
        }
        edit_ = el_init("deepinfer", stdin, stdout, stderr);
        history_ = history_init();
        HistEvent event;
        history(history_, &event, H_SETSIZE, 1000);
        el_set(
            edit_, EL_PROMPT, +[](EditLine*) -> char* {
                static char prompt[] = "> ";
                return prompt;
            });
        el_set(edit_, EL_HIST, history, history_);
        el_set(edit_, EL_EDITOR, "emacs");
    }
    ~LineReader() {
        if (history_ != nullptr) history_end(history_);
        if (edit_ != nullptr) el_end(edit_);
    }
    LineReader(const LineReader&) = delete;
    LineReader& operator=(const LineReader&) = delete;

    bool interactive() const { return edit_ != nullptr; }

    std::optional<std::string> next() {
        std::string line;
        if (edit_ == nullptr) {
            if (!std::getline(std::cin, line)) return std::nullopt;
            return line;
        }
        int n = 0;
        const char* text = nullptr;
        for (;;) {
            interrupted = false;
            text = el_gets(edit_, &n);
            // Ctrl-C at the prompt clears the line; SIGTERM and Ctrl-D leave.
            if (text != nullptr || !interrupted || interrupting_signal == SIGTERM) break;
            std::fputs("^C\n", stdout);
            el_reset(edit_);
        }
        if (text == nullptr || n <= 0) return std::nullopt;
        line.assign(text, static_cast<size_t>(n));
        while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
        HistEvent event;
        if (!line.empty()) history(history_, &event, H_ENTER, line.c_str());
        return line;
    }

  private:
    EditLine* edit_ = nullptr;
    History* history_ = nullptr;
};

/// A conversation with the engine of this process, or with a server.
class Chat {
  public:
    Chat(Engine* engine, Options& options, recipe::Conversation start)
        : engine_(engine), options_(options), conversation_(std::move(start)) {}

    /// One user turn. Returns an error only if the turn was refused; the conversation is then
    /// unchanged.
    Status turn(const std::string& text) {
        if (engine_ == nullptr) return remote_turn(text);
        conversation_.messages.push_back(user_message(text, pending_.size()));
        Result<std::vector<int32_t>> ids =
            recipe::prompt_ids(engine_->tokenizer(), recipe::encode_prompt(conversation_));
        if (!ids.ok()) return refuse(ids.status());
        Request request;
        request.prompt_token_ids = std::move(ids).value();
        request.images = images_;
        request.images.insert(request.images.end(), pending_.begin(), pending_.end());
        request.sampling = options_.sampling.params;
        AnswerPrinter printer(recipe::parsing_options(conversation_), false);
        ProgressLine line(stderr_is_terminal() && request.prompt_token_ids.size() > 256);
        RequestCallbacks callbacks;
        callbacks.on_prefill = [&](const PrefillProgress& p) {
            if (p.rows_done < p.rows_total)
                line.show("reading: " + std::to_string(p.rows_done) + " of " +
                          std::to_string(p.rows_total) + " tokens");
        };
        callbacks.on_output = [&](const Output& out) {
            line.clear();
            return printer.push(out.text);
        };
        Result<Completion> done = engine_->generate(std::move(request), callbacks, &interrupted);
        line.clear();
        if (!done.ok()) return refuse(done.status());
        const CompletionChoice& choice = done->choices[0];
        printer.finish(choice.finish_reason == FinishReason::kLength ? recipe::FinishReason::kLength
                                                                     : recipe::FinishReason::kStop);
        if (choice.finish_reason == FinishReason::kError) return refuse(choice.error);
        show_constraint_notes(done->constraint_notes);
        conversation_.messages.push_back(
            recipe::Message::assistant(printer.content(), printer.reasoning()));
        images_.insert(images_.end(), pending_.begin(), pending_.end());
        pending_.clear();
        if (stderr_is_terminal() || options_.common.progress) {
            const double seconds = (done->timing.total_ms - done->timing.first_token_ms) / 1000.0;
            std::fprintf(stderr,
                         "[%lld prompt tokens, %lld cached; %lld generated, %.1f tokens/s]\n",
                         static_cast<long long>(done->usage.prompt_tokens),
                         static_cast<long long>(done->usage.cached_tokens),
                         static_cast<long long>(done->usage.completion_tokens),
                         seconds > 0
                             ? static_cast<double>(done->usage.completion_tokens - 1) / seconds
                             : 0.0);
        }
        return {};
    }

    /// Shows a picture with the next message.
    Status show(const std::string& path) {
        Result<ImageInput> image = read_image_file(path);
        if (!image.ok()) return image.status();
        pending_.push_back(std::move(image).value());
        return {};
    }

    /// Runs a line that starts with '/'. Returns false to leave.
    bool command(const std::string& line) {
        const auto rest = [&](size_t n) {
            return line.size() > n ? line.substr(n) : std::string();
        };
        if (line == "/exit" || line == "/quit") return false;
        if (line == "/clear") {
            reset(system_text());
        } else if (line.rfind("/system ", 0) == 0) {
            reset(rest(8));
        } else if (line.rfind("/image ", 0) == 0) {
            const Status s = show(rest(7));
            if (!s.ok()) std::fprintf(stderr, "deepinfer: %s\n", s.message().c_str());
        } else if (line == "/think 0" || line == "/think 1") {
            conversation_.thinking = line.back() == '1';
        } else {
            if (line != "/help") std::fprintf(stderr, "unknown command %s\n", line.c_str());
            std::fputs(kHelp, stderr);
        }
        return true;
    }

  private:
    Status remote_turn(const std::string& text) {
        conversation_.messages.push_back(user_message(text, pending_.size()));
        std::vector<ImageInput> images = images_;
        images.insert(images.end(), pending_.begin(), pending_.end());
        AnswerPrinter printer(recipe::ParsingOptions(), false);
        const Status s =
            ask_server(options_.remote, options_.sampling, conversation_, images, &printer);
        printer.finish(recipe::FinishReason::kStop);
        const bool said = !printer.content().empty() || !printer.reasoning().empty();
        if (!s.ok() && !(s.code() == StatusCode::kCancelled && said)) return refuse(s);
        conversation_.messages.push_back(
            recipe::Message::assistant(printer.content(), printer.reasoning()));
        images_ = std::move(images);
        pending_.clear();
        return {};
    }

    Status refuse(Status s) {
        conversation_.messages.pop_back();
        return s;
    }
    std::string system_text() const {
        if (conversation_.messages.empty() ||
            conversation_.messages[0].role != recipe::Role::kSystem)
            return {};
        return conversation_.messages[0].content.empty()
                   ? std::string()
                   : conversation_.messages[0].content[0].text;
    }
    void reset(const std::string& system) {
        conversation_.messages.clear();
        images_.clear();
        pending_.clear();
        if (!system.empty()) conversation_.messages.push_back(recipe::Message::system(system));
    }

    Engine* engine_;  // null: a server's
    Options& options_;
    recipe::Conversation conversation_;
    std::vector<ImageInput> images_, pending_;  ///< of the conversation; of the message to come
};

int run(Options& o) {
    if (o.sampling.params.n != 1) {
        return fail({StatusCode::kInvalidArgument,
                     "--n " + std::to_string(o.sampling.params.n) +
                         ": a conversation goes on with one answer"});
    }
    recipe::Conversation conversation;
    if (!o.system.empty()) conversation.messages.push_back(recipe::Message::system(o.system));
    if (Status s = o.sampling.apply(&conversation); !s.ok()) return fail(s);
    std::unique_ptr<Engine> engine;
    std::string whom = o.remote.url;
    if (o.remote.url.empty()) {
        Result<std::string> dir = resolve_model(o.common);
        if (!dir.ok()) return fail(dir.status());
        o.common.engine.model_dir = whom = dir.value();
        Result<std::unique_ptr<Engine>> created = Engine::create(o.common.engine);
        if (!created.ok()) return fail(created.status());
        engine = std::move(created).value();
    } else if (Status s = find_remote_model(&o.remote); !s.ok()) {
        return fail(s);
    }
    LineReader reader;
    if (reader.interactive())
        std::fprintf(stderr, "%s\nType a message; /help lists commands.\n", whom.c_str());
    Chat chat(engine.get(), o, std::move(conversation));
    for (const std::string& path : o.images) {
        if (Status s = chat.show(path); !s.ok()) return fail(s);
    }
    install_interrupt_handler();
    while (std::optional<std::string> line = reader.next()) {
        if (line->empty()) continue;
        if ((*line)[0] == '/') {
            if (!chat.command(*line)) break;
            continue;
        }
        interrupted = false;
        const Status s = chat.turn(*line);
        if (!s.ok()) {
            std::fprintf(stderr, "deepinfer: %s\n", s.message().c_str());
            if (!reader.interactive()) return exit_code(s);
        }
        // Ctrl-C ends the answer; SIGTERM, or either over a pipe, ends the program.
        if (interrupted && (!reader.interactive() || interrupting_signal == SIGTERM)) {
            return kExitInterrupted;
        }
    }
    return interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace

Run add_chat(CLI::App& root) {
    auto o = std::make_shared<Options>();
    CLI::App* app = root.add_subcommand("chat", "A conversation at the terminal");
    app->add_option("--system", o->system, "System message");
    app->add_option("--image", o->images, "Picture shown with the first message (repeatable)")
        ->allow_extra_args(false);
    app->add_option(
        "--url", o->remote.url, "Talk to a server instead: http://HOST:PORT (Chat Completions)");
    app->add_option("--api-key", o->remote.api_key, "Its API key (better in OPENAI_API_KEY)")
        ->envname("OPENAI_API_KEY");
    app->add_option("--model-name", o->remote.model, "Its model (default: the first it lists)");
    add_model_options(*app, o->common);
    add_engine_options(*app, o->common);
    add_sampling_options(*app, o->sampling);
    return [o] { return run(*o); };
}

}  // namespace deepinfer::cli
