// forward: the judge's door. Token ids in a file, every named intermediate tensor out.
#include <cstdio>
#include <memory>

#include "command.h"
#include "deepinfer/judge.h"

namespace deepinfer::cli {
namespace {

struct Options {
    CommonOptions common;
    ForwardOptions forward;
    bool exact = false;
};

int run(Options& o) {
    Result<std::string> dir = resolve_model(o.common);
    if (!dir.ok()) return fail(dir.status());
    o.forward.model_dir = dir.value();
    o.forward.backend = o.exact ? "exact" : o.common.engine.backend;
    o.forward.isa = o.common.engine.isa;
    o.forward.threads = o.common.engine.threads;
    ProgressLine line(stderr_is_terminal() || o.common.progress);
    o.forward.progress = [&](int64_t done, int64_t total) {
        line.show("rows: " + std::to_string(done) + " of " + std::to_string(total));
    };
    Result<std::string> summary = run_forward(o.forward);
    line.clear();
    if (!summary.ok()) return fail(summary.status());
    if (o.common.json)
        std::printf("%s\n", summary->c_str());
    else
        std::printf("wrote %s\n", o.forward.output.c_str());
    return kExitOk;
}

}  // namespace

Run add_forward(CLI::App& root) {
    auto o = std::make_shared<Options>();
    CLI::App* app = root.add_subcommand(
        "forward", "Runs given token ids and writes the named intermediate tensors");
    app->add_option("--input",
                    o->forward.input,
                    "safetensors with input_ids (prefill), prompt_ids and tokens (decode), or rgb")
        ->required();
    app->add_option("--output", o->forward.output, "safetensors to write")->required();
    app->add_flag("--exact", o->exact, "The twin with double accumulation between rounding points");
    app->add_option("--force",
                    o->forward.force,
                    "Take expert ids, candidate blocks and top-k lists from this file (repeatable)")
        ->allow_extra_args(false);
    app->add_option("--image",
                    o->forward.images,
                    "Picture (or safetensors with rgb) of a span, in order (repeatable)")
        ->allow_extra_args(false);
    app->add_option("--chunk", o->forward.chunk, "Prompt rows per step")->capture_default_str();
    add_model_options(*app, o->common);
    return [o] { return run(*o); };
}

}  // namespace deepinfer::cli
