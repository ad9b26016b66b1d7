// deepinfer: one program, one subcommand per file. See `deepinfer help`.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "command.h"
#ifdef DEEPINFER_WITH_CUDA
#include "backends/cuda/cuda_backend.h"
#endif

namespace {

constexpr const char* kFooter =
    "Exit codes: 0 done, 1 the work failed, 2 wrong usage or configuration, 3 the model directory "
    "or an input\n"
    "file is invalid, 130 interrupted.\n\n"
    "Examples:\n"
    "  deepinfer generate \"What is the capital of France?\"\n"
    "  deepinfer generate --temperature 0 --thinking 0 \"12 + 30\"\n"
    "  echo 'Once upon a time' | deepinfer generate --raw -\n"
    "  deepinfer chat\n"
    "  deepinfer serve --port 8000\n"
    "  deepinfer inspect --model DIR\n";

}  // namespace

namespace {

/// Runs a command; output that could not be written and exceptions of last resort are failures.
int finish(const deepinfer::cli::Run& run) {
    int code = deepinfer::cli::kExitFailed;
    try {
        code = run();
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "deepinfer: out of memory\n");
    } catch (const std::exception& e) {
        std::fprintf(stderr, "deepinfer: internal error: %s\n", e.what());
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        std::fprintf(stderr, "deepinfer: the output could not be written\n");
        if (code == deepinfer::cli::kExitOk) code = deepinfer::cli::kExitFailed;
    }
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    using namespace deepinfer;
    register_ref_backends();
    register_cpu_backend();
#ifdef DEEPINFER_WITH_CUDA
    register_cuda_backend();
#endif

    CLI::App app{"deepinfer runs DeepSeek-V4.1-architecture checkpoints on machines you own.",
                 "deepinfer"};
    app.set_version_flag("--version", std::string("deepinfer ") + DEEPINFER_VERSION);
    app.footer(kFooter);
    app.require_subcommand(0, 1);
    std::vector<std::pair<CLI::App*, cli::Run>> commands;
    const auto add = [&](cli::Run (*make)(CLI::App&)) {
        cli::Run run = make(app);
        commands.emplace_back(app.get_subcommands({}).back(), std::move(run));
    };
    add(&cli::add_generate);
    add(&cli::add_chat);
    add(&cli::add_serve);
    add(&cli::add_batch);
    add(&cli::add_bench);
    add(&cli::add_check_constraint);
    add(&cli::add_inspect);
    add(&cli::add_forward);
    add(&cli::add_ppl);
    add(&cli::add_encode);
    add(&cli::add_parse);
    add(&cli::add_tokenize);
    add(&cli::add_detokenize);
    std::string help_topic;
    CLI::App* help = app.add_subcommand("help", "Shows the help of a command");
    help->add_option("command", help_topic, "Which command");

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        return app.exit(e) == 0 ? cli::kExitOk : cli::kExitUsage;
    }
    for (const auto& [command, run] : commands) {
        if (*command) return finish(run);
    }
    if (*help && !help_topic.empty()) {
        for (const auto& [command, run] : commands) {
            if (command->get_name() == help_topic) {
                std::fputs(command->help().c_str(), stdout);
                return cli::kExitOk;
            }
        }
        std::fprintf(stderr, "deepinfer: no command '%s'\n", help_topic.c_str());
        return cli::kExitUsage;
    }
    std::fputs(app.help().c_str(), stdout);
    return *help ? cli::kExitOk : cli::kExitUsage;
}
