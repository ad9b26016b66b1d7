#include "bench_ops.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "bench_record.h"

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

void print_worst(std::vector<OpMeasurement> all) {
    constexpr size_t kShown = 10;
    std::sort(all.begin(), all.end(), [](const OpMeasurement& a, const OpMeasurement& b) {
        return a.share < b.share;
    });
    std::fprintf(stderr,
                 "%-20s %-44s %5s %12s %6s %8s\n",
                 "farthest from the roof",
                 "shape",
                 "rows",
                 "median us",
                 "roof",
                 "share");
    for (size_t i = 0; i < all.size() && i < kShown; ++i) {
        const OpMeasurement& m = all[i];
        std::fprintf(stderr,
                     "%-20s %-44s %5lld %12.1f %6s %7.1f%%\n",
                     m.op.c_str(),
                     m.shape.c_str(),
                     static_cast<long long>(m.rows),
                     m.med_us,
                     m.roof.c_str(),
                     100 * m.share);
    }
}

}  // namespace

Status bench_ops(const CommonOptions& common,
                 OpBenchOptions options,
                 const std::string& tag,
                 const std::string& note,
                 const std::string& append) {
    options.backend = common.engine.backend == "auto" ? "cpu" : common.engine.backend;
    options.threads = common.engine.threads;
    options.isa = common.engine.isa;
    options.synthetic = common.synthetic;
    options.model_dir = common.engine.model_dir;
    const std::string model =
        options.model_dir.empty()
            ? "synthetic:" + (options.synthetic.empty() ? "cpu-slice" : options.synthetic)
            : options.model_dir;
    std::ofstream file;
    if (!append.empty()) {
        file.open(append, std::ios::app | std::ios::binary);
        if (!file) return {StatusCode::kInvalidArgument, "cannot append to " + append};
    }
    std::vector<OpMeasurement> all;
    const bool talk = stderr_is_terminal() || common.progress;
    ProgressLine line(talk);
    const auto show = [&](const OpMeasurement& m) {
        ordered_json r =
            machine_record("ops", tag, note, options.threads, options.backend, m.backend_line);
        r["model"] = model;
        r["op"] = m.op;
        r["shape"] = m.shape;
        r["rows"] = m.rows;
        r["dtype"] = m.dtype;
        r["min_us"] = m.min_us;
        r["med_us"] = m.med_us;
        r["p90_us"] = m.p90_us;
        r["bytes"] = m.bytes;
        r["flops"] = m.flops;
        r["roof"] = m.roof;
        r["roof_value"] = m.roof_value;
        r["share"] = m.share;
        r["settings"] = {
            {"windows", options.windows}, {"window_ms", options.window_ms}, {"seed", options.seed}};
        const std::string text =
            r.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
        line.clear();
        std::fputs(text.c_str(), stdout);
        std::fflush(stdout);
        if (file.is_open()) file << text << std::flush;
        all.push_back(m);
        line.show("bench ops: " + m.op + " " + m.shape + ", " + std::to_string(m.rows) + " rows");
        return !interrupted;
    };
    const Status s = run_op_bench(options, show);
    line.clear();
    if (!s.ok()) return s;
    if (interrupted) return {StatusCode::kCancelled, "interrupted"};
    if (talk) print_worst(std::move(all));
    return {};
}

}  // namespace deepinfer::cli
