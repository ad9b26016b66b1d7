#include <algorithm>

#include "base/mmap_file.h"
#include "checkpoint/model_files.h"
#include "checkpoint/synthetic.h"
#include "deepinfer/op_bench.h"
#include "opbench/bench_context.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxConfigBytes = 16u << 20;

Result<ModelConfig> geometry_of(const OpBenchOptions& o) {
    if (!o.model_dir.empty()) {
        Result<std::string> path = model_file_path(o.model_dir, "config.json");
        if (!path.ok()) return path.status();
        Result<std::string> text = read_file(path.value(), kMaxConfigBytes);
        if (!text.ok()) return text.status();
        return parse_model_config(text.value(), path.value());
    }
    Result<SyntheticModel> model = parse_synthetic(o.synthetic.empty() ? "cpu-slice" : o.synthetic);
    if (!model.ok()) return model.status();
    return model->config;
}

Status check(const OpBenchOptions& o) {
    const std::vector<std::string> known = benched_ops();
    for (const std::string& op : o.ops) {
        if (std::find(known.begin(), known.end(), op) != known.end()) continue;
        std::string list;
        for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
        return {StatusCode::kInvalidArgument, "bench ops: no op '" + op + "'; there are " + list};
    }
    for (const int64_t rows : o.rows) {
        if (rows < 1 || rows > 65536)
            return {StatusCode::kInvalidArgument,
                    "bench ops: rows hold " + std::to_string(rows) + ", expected 1 to 65536"};
    }
    if (o.windows < 1 || !(o.window_ms > 0))
        return {StatusCode::kInvalidArgument, "bench ops: windows and window_ms must be positive"};
    return {};
}

}  // namespace

Status run_op_bench(const OpBenchOptions& o,
                    const std::function<bool(const OpMeasurement&)>& on_result) {
    DI_RETURN_IF_ERROR(check(o));
    Result<ModelConfig> config = geometry_of(o);
    if (!config.ok()) return config.status();
    BackendOptions options;
    options.num_threads = o.threads;
    options.isa = o.isa;
    Result<std::unique_ptr<Backend>> backend = create_backend(o.backend, options);
    if (!backend.ok()) return backend.status();
    if (!(backend.value()->measure_roof(Roof::kRead) > 0)) {
        return Status(
            StatusCode::kInvalidArgument,
            "bench ops: backend " + o.backend + " cannot measure its roofs, expected cpu");
    }
    BenchContext context(*backend.value(), config.value(), o, on_result);
    bench_matrix_ops(context);
    bench_attention_ops(context);
    bench_row_ops(context);
    return context.status();
}

}  // namespace deepinfer
