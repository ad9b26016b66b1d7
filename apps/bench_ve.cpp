#include "bench_ve.h"

#include <cinttypes>
#include <cstdio>
#include <utility>

#include "deepinfer/judge.h"

namespace deepinfer::cli {
namespace {

Result<std::pair<int64_t, int64_t>> read_size(const std::string& text) {
    int64_t w = 0, h = 0;
    char rest = 0;
    const int got = std::sscanf(text.c_str(), "%" SCNd64 "x%" SCNd64 "%c", &w, &h, &rest);
    if (got == 1 && text.find('x') == std::string::npos) h = w;
    if ((got == 1 || got == 2) && w >= 1 && h >= 1 && w <= 8192 && h <= 8192)
        return std::make_pair(w, h);
    return Status(StatusCode::kInvalidArgument,
                  "--sizes holds '" + text + "', expected WIDTHxHEIGHT or a side, up to 8192");
}

}  // namespace

void add_bench_ve_options(CLI::App& app, BenchVeOptions& options) {
    app.add_option("--image",
                   options.images,
                   "ve: time decoding, resizing and cutting these files on one thread instead of "
                   "the tower (repeatable)");
    app.add_option("--sizes",
                   options.sizes,
                   "ve: sizes of pictures, WIDTHxHEIGHT or a side (default "
                   "546,1024x768,1302,1920x1080); --batch-sizes, --warmup and --repeat count "
                   "batches")
        ->delimiter(',')
        ->allow_extra_args(false);
}

Status run_bench_ve(const CommonOptions& common,
                    const BenchVeOptions& options,
                    const std::function<Status(nlohmann::ordered_json)>& emit) {
    if (!options.images.empty() && !options.sizes.empty())
        return {StatusCode::kInvalidArgument,
                "--image times files instead of the tower, --sizes is for the tower: one of them"};
    VisionBenchOptions b;
    b.model_dir = common.engine.model_dir;
    b.synthetic = common.synthetic;
    b.images = options.images;
    b.backend = common.engine.backend;
    b.isa = common.engine.isa;
    b.threads = common.engine.threads;
    b.batches = options.batch_sizes;
    b.warmup = options.warmup;
    b.iters = options.repeat;
    b.cancel = &interrupted;
    const std::vector<std::string> usual = {"546", "1024x768", "1302", "1920x1080"};
    for (const std::string& text : options.sizes.empty() ? usual : options.sizes) {
        const Result<std::pair<int64_t, int64_t>> size = read_size(text);
        if (!size.ok()) return size.status();
        b.sizes.push_back(size.value());
    }
    install_interrupt_handler();
    Status emitted;
    const Status done = bench_vision(b, [&](const std::string& json) {
        if (emitted.ok()) emitted = emit(nlohmann::ordered_json::parse(json));
    });
    return done.ok() ? emitted : done;
}

}  // namespace deepinfer::cli
