#include "bench_scheduler.h"

#include <cstdlib>

#include "command.h"
#include "deepinfer/scheduler_bench.h"

namespace deepinfer::cli {

Status run_bench_scheduler(const std::vector<int64_t>& running,
                           int windows,
                           uint64_t seed,
                           const std::string& tag,
                           const std::string& note,
                           const std::function<Status(const nlohmann::ordered_json&)>& emit) {
    SchedulerBenchOptions o;
    if (!running.empty()) o.running = running;
    o.windows = windows;
    o.seed = seed;
    Status written;
    const Status s = run_scheduler_bench(o, [&](const SchedulerMeasurement& m) {
        nlohmann::ordered_json r = start_plain_record("scheduler",
                                                      tag,
                                                      note,
                                                      {{"prompt_tokens", o.prompt_tokens},
                                                       {"vocab_size", o.vocab_size},
                                                       {"windows", o.windows},
                                                       {"window_steps", o.window_steps},
                                                       {"loop", m.loop},
                                                       {"sampling", m.sampling},
                                                       {"seed", o.seed}});
        r["batch"] = m.running;
        r["step_cpu_us"] = m.step_cpu_us;
        r["step_us"] = m.step_us;
        r["step_min_us"] = m.min_step_us;
        r["plan_us"] = m.plan_us;
        r["commit_us"] = m.commit_us;
        r["sample_us"] = m.sample_us;
        double load[3] = {0, 0, 0};
        if (getloadavg(load, 3) > 0) r["load_average"] = load[0];
        written = emit(r);
        return written.ok() && !interrupted;
    });
    if (interrupted) return {StatusCode::kCancelled, "interrupted"};
    return s.ok() ? written : s;
}

}  // namespace deepinfer::cli
