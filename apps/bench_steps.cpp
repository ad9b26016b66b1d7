#include "bench_steps.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <thread>

#include "closed_loop.h"
#include "deepinfer/op_profile.h"

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

/// What one op takes of a step, and what the roofs would let it take.
struct Share {
    double calls = 0, us = 0, floor_us = 0;
};

class StepsBench {
  public:
    StepsBench(Engine& engine, const StepsOptions& options)
        : engine_(engine), o_(options), prompts_(engine, options.seed) {}

    bool usable() const { return prompts_.usable(); }

    /// `batch` requests decoding; batch 0: one prompt chunk.
    Status measure(int64_t batch, ordered_json* record) {
        const bool decode = batch > 0;
        std::vector<std::vector<int32_t>> prompts;
        for (int64_t i = 0; i < std::max<int64_t>(1, batch); ++i)
            prompts.push_back(prompts_.make(o_.context));
        double bytes = 0;
        {  // once for the caches of the machine and of the engine, once for the costs
            Sample unused;
            if (Status s = window(decode, prompts, &unused); !s.ok()) return s;
            if (Status s = profile(decode, prompts, &bytes); !s.ok()) return s;
        }
        Sample step_ms, read, dot;
        for (int w = 0; w < o_.windows && !interrupted; ++w) {
            read.add(profiled_read_roof(bytes));
            dot.add(profiled_dot_roof());
            if (Status s = window(decode, prompts, &step_ms); !s.ok()) return s;
            read.add(profiled_read_roof(bytes));
            dot.add(profiled_dot_roof());
        }
        if (interrupted) return {StatusCode::kCancelled, "interrupted"};
        write(batch, bytes, step_ms, read.median(), dot.median(), record);
        return {};
    }

  private:
    SamplingParams sampling(int64_t tokens) const {
        SamplingParams p;
        p.temperature = 0;
        p.ignore_eos = true;
        p.max_tokens = tokens;
        return p;
    }

    /// A prompt that the prefix cache does not hold.
    void renew(std::vector<std::vector<int32_t>>* prompts) {
        for (std::vector<int32_t>& p : *prompts) p = prompts_.make(o_.context);
    }

    Status window(bool decode, std::vector<std::vector<int32_t>>& prompts, Sample* step_ms) {
        if (!decode) renew(&prompts);
        const Tally t =
            ClosedLoop(
                engine_, static_cast<int64_t>(prompts.size()), sampling(decode ? o_.steps : 1))
                .run(prompts);
        if (!t.error.ok()) return t.error;
        engine_.wait_idle();
        // Steps in which other requests still read their prompts are longer: the median is not one.
        step_ms->add(decode ? t.itl_ms.median() : t.elapsed_s() * 1000);
        return {};
    }

    /// Costs of the steps, one by one. Times of a profiled step are shares, not rates.
    Status profile(bool decode, std::vector<std::vector<int32_t>>& prompts, double* bytes) {
        if (!decode) {
            renew(&prompts);
            start_op_profile();
        }
        Status status;
        std::thread load([&] {
            status = ClosedLoop(engine_,
                                static_cast<int64_t>(prompts.size()),
                                sampling(decode ? 2 * o_.steps : 1))
                         .run(prompts)
                         .error;
        });
        const int64_t goal =
            engine_.stats().decode_tokens + static_cast<int64_t>(prompts.size()) * o_.steps / 2;
        const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
        const int64_t finished =
            engine_.stats().finished_requests + static_cast<int64_t>(prompts.size());
        const auto over = [&] {
            return interrupted || engine_.stats().finished_requests >= finished;
        };
        while (decode && engine_.stats().decode_tokens < goal && !over()) pause();
        if (decode) start_op_profile();
        const int64_t enough = engine_.stats().steps + o_.steps / 2;
        while ((!decode || engine_.stats().steps < enough) && !over()) pause();
        ops_ = stop_op_profile(&steps_);
        load.join();
        engine_.wait_idle();
        if (!decode) steps_ = std::min<int64_t>(steps_, 1);  // a prompt, in however many steps
        if (status.ok() && (steps_ == 0 || ops_.empty()))
            status = Status(StatusCode::kOutOfRange,
                            "bench steps: no whole step was seen; ask for more --window-steps");
        // A working set: what is stored counts once, what flows between ops stays in the caches.
        *bytes = 0;
        for (const ProfiledOp& op : ops_)
            *bytes += op.stored * static_cast<double>(op.calls) / static_cast<double>(steps_);
        return status;
    }

    void write(int64_t batch,
               double bytes,
               const Sample& step_ms,
               double read,
               double dot,
               ordered_json* record) {
        std::map<std::string, Share> shares;
        double floor_us = 0, profiled_us = 0, flops = 0, moved = 0;
        for (const ProfiledOp& op : ops_) {
            const double calls = static_cast<double>(op.calls) / static_cast<double>(steps_);
            Share& s = shares[op.op];
            s.calls += calls;
            s.us += op.seconds * 1e6 / static_cast<double>(steps_);
            s.floor_us += calls * std::max(op.bytes / read, op.flops / dot) * 1e6;
            flops += calls * op.flops;
            moved += calls * op.bytes;
        }
        for (const auto& [name, s] : shares) {
            floor_us += s.floor_us;
            profiled_us += s.us;
        }
        ordered_json& r = *record;
        r = start_record("steps",
                         o_.tag,
                         o_.note,
                         engine_,
                         {{"context", o_.context},
                          {"steps", o_.steps},
                          {"windows", o_.windows},
                          {"seed", o_.seed}});
        r["phase"] = batch > 0 ? "decode" : "prefill";
        r["batch"] = std::max<int64_t>(1, batch);
        r["context"] = o_.context;
        step_ms.put_spread("step", "_ms", &r);
        const double tokens = static_cast<double>(batch > 0 ? batch : o_.context);
        r["tokens_per_s"] = tokens / step_ms.median() * 1000;
        r["floor_ms"] = floor_us / 1000;
        r["floor_tokens_per_s"] = tokens / floor_us * 1e6;
        r["share"] = floor_us / 1000 / step_ms.median();
        r["read_roof_bytes_per_s"] = read;
        r["dot_roof_flops_per_s"] = dot;
        r["working_set_bytes"] = bytes;
        r["bytes"] = moved;
        r["flops"] = flops;
        std::vector<std::pair<std::string, Share>> order(shares.begin(), shares.end());
        std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
            return a.second.us > b.second.us;
        });
        r["ops"] = ordered_json::array();
        for (const auto& [name, s] : order) {
            r["ops"].push_back({{"op", name},
                                {"calls", s.calls},
                                {"share_of_step", s.us / profiled_us},
                                {"floor_us", s.floor_us},
                                {"share_of_roof", s.us > 0 ? s.floor_us / s.us : 0}});
        }
        if (o_.table) print(r);
    }

    static void print(const ordered_json& r) {
        std::fprintf(stderr,
                     "%s, batch %lld: %.2f ms, floors %.2f ms (%.0f %%), %.0f tokens/s of %.0f; "
                     "read %.1f GB/s of %.0f MB, dot %.0f GFLOP/s\n",
                     r["phase"].get<std::string>().c_str(),
                     static_cast<long long>(r["batch"].get<int64_t>()),
                     r["step_ms"].get<double>(),
                     r["floor_ms"].get<double>(),
                     100 * r["share"].get<double>(),
                     r["tokens_per_s"].get<double>(),
                     r["floor_tokens_per_s"].get<double>(),
                     r["read_roof_bytes_per_s"].get<double>() / 1e9,
                     r["working_set_bytes"].get<double>() / 1e6,
                     r["dot_roof_flops_per_s"].get<double>() / 1e9);
        std::fprintf(
            stderr, "%-20s %8s %8s %11s %9s\n", "op", "calls", "step", "floor us", "of roof");
        for (const ordered_json& op : r["ops"]) {
            std::fprintf(stderr,
                         "%-20s %8.1f %7.1f%% %11.1f %8.1f%%\n",
                         op["op"].get<std::string>().c_str(),
                         op["calls"].get<double>(),
                         100 * op["share_of_step"].get<double>(),
                         op["floor_us"].get<double>(),
                         100 * op["share_of_roof"].get<double>());
        }
    }

    Engine& engine_;
    const StepsOptions& o_;
    PromptMaker prompts_;
    std::vector<ProfiledOp> ops_;
    int64_t steps_ = 0;
};

}  // namespace

Status run_bench_steps(EngineConfig config,
                       const StepsOptions& options,
                       const std::function<Status(const ordered_json&)>& emit) {
    const std::string backend = config.backend == "auto" ? "cpu" : config.backend;
    if (backend != "cpu")
        return {StatusCode::kInvalidArgument,
                "bench steps: backend " + backend + " cannot measure its roofs, expected cpu"};
    if (config.nextn > 0)
        return {StatusCode::kInvalidArgument,
                "bench steps runs without drafts (a draft's passes would be steps of their own), "
                "but --nextn is " +
                    std::to_string(config.nextn)};
    register_profiled_backend(backend);
    config.backend = backend + "+profile";
    config.nextn = 0;
    Result<std::unique_ptr<Engine>> engine = Engine::create(config);
    if (!engine.ok()) return engine.status();
    StepsBench bench(*engine.value(), options);
    if (!bench.usable())
        return {StatusCode::kInvalidFile,
                "the vocabulary has no ordinary tokens to make prompts of"};
    std::vector<int64_t> phases{0};
    phases.insert(phases.end(), options.batch_sizes.begin(), options.batch_sizes.end());
    for (const int64_t batch : phases) {
        ordered_json record;
        Status s = bench.measure(batch, &record);
        if (s.ok()) s = emit(record);
        if (!s.ok()) return s;
    }
    return {};
}

}  // namespace deepinfer::cli
