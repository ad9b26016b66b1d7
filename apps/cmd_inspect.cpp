// inspect: what a checkpoint is, and what would be refused.
#include <cstdio>
#include <memory>

#include "command.h"
#include "deepinfer/checkpoint.h"

namespace deepinfer::cli {

Run add_inspect(CLI::App& root) {
    auto o = std::make_shared<CommonOptions>();
    CLI::App* app = root.add_subcommand("inspect", "Says what a checkpoint is and what would be refused");
    add_model_options(*app, *o);
    return [o]() -> int {
        Result<std::string> dir = resolve_model(*o);
        if (!dir.ok()) return fail(dir.status());
        Result<std::string> report = inspect_checkpoint(dir.value());
        if (!report.ok()) return fail(report.status());
        const bool loadable = inspection_is_loadable(report.value());
        std::printf("%s\n", o->json ? report->c_str() : render_inspection(report.value()).c_str());
        return loadable ? kExitOk : kExitInvalidFile;
    };
}

}  // namespace deepinfer::cli
