// inspect: what a checkpoint is, and what would be refused.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "deepinfer/checkpoint.h"

namespace deepinfer::cli {

Run add_inspect(CLI::App& root) {
    struct Options {
        CommonOptions common;
        InspectionText text;
    };
    auto o = std::make_shared<Options>();
    CLI::App* app =
        root.add_subcommand("inspect", "Says what a checkpoint is and what would be refused");
    app->add_option("--model",
                    o->common.model,
                    "Checkpoint directory or hub id (default: DEEPINFER_HF_MODEL_DIR, then the "
                    "demonstration checkpoint)");
    app->add_flag("--json", o->common.json, "One JSON document on stdout");
    app->add_flag("--tensors", o->text.list_tensors, "List every tensor");
    return [o]() -> int {
        Result<std::string> dir = resolve_model(o->common);
        if (!dir.ok()) return fail(dir.status());
        Result<std::string> report = inspect_checkpoint(dir.value());
        if (!report.ok()) return fail(report.status());
        const bool loadable = nlohmann::json::parse(report.value()).value("loadable", false);
        Result<std::string> text =
            o->common.json ? report : render_inspection(report.value(), o->text);
        if (!text.ok()) return fail(text.status());
        std::printf("%s\n", text->c_str());
        return loadable ? kExitOk : kExitInvalidFile;
    };
}

}  // namespace deepinfer::cli
