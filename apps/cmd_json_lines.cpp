// encode, parse, tokenize, detokenize: JSON Lines in on stdin, JSON Lines out on stdout.
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>

#include "command.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/tokenizer.h"

namespace deepinfer::cli {
namespace {

using Answer = std::function<std::string(const Tokenizer&, const std::string&)>;

/// One answer per request, in order; exit status 0 even if requests are refused.
Run add_line_command(CLI::App& root, const char* name, const char* help, Answer answer) {
    auto o = std::make_shared<CommonOptions>();
    CLI::App* app = root.add_subcommand(name, help);
    app->add_option(
        "--model",
        o->model,
        "Directory with tokenizer.json (default: as for generate); no weights are read");
    app->add_flag("--json", o->json, "JSON Lines (the only form)");
    return [o, answer = std::move(answer)]() -> int {
        Result<std::string> dir = resolve_model(*o);
        if (!dir.ok()) return fail(dir.status());
        Result<Tokenizer> tokenizer = Tokenizer::load(dir.value());
        if (!tokenizer.ok()) return fail(tokenizer.status());
        std::string line;
        while (std::getline(std::cin, line)) {
            const std::string out = answer(tokenizer.value(), line);
            std::fwrite(out.data(), 1, out.size(), stdout);
            std::fputc('\n', stdout);
            if (std::cin.rdbuf()->in_avail() <= 0)
                std::fflush(stdout);  // a peer may wait for this answer
        }
        return kExitOk;  // main checks that everything was written
    };
}

}  // namespace

Run add_encode(CLI::App& root) {
    return add_line_command(root,
                            "encode",
                            "Request bodies or conversations to prompt text and ids (JSON Lines)",
                            [](const Tokenizer& t, const std::string& line) {
                                return recipe::encode_json_line(t, line);
                            });
}
Run add_parse(CLI::App& root) {
    return add_line_command(root,
                            "parse",
                            "Model output to reasoning, content and tool calls (JSON Lines)",
                            [](const Tokenizer& t, const std::string& line) {
                                return recipe::parse_json_line(&t, line);
                            });
}
Run add_tokenize(CLI::App& root) {
    return add_line_command(
        root,
        "tokenize",
        "Text to ids and back (JSON Lines)",
        [](const Tokenizer& t, const std::string& line) { return tokenize_json_line(t, line); });
}
Run add_detokenize(CLI::App& root) {
    return add_line_command(root,
                            "detokenize",
                            "Ids to text (JSON Lines)",
                            [](const Tokenizer& t, const std::string& line) {
                                return tokenize_json_line(t, line, TokenizeOp::kDecode);
                            });
}

}  // namespace deepinfer::cli
