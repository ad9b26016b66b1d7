// bench: measurements as JSON Lines records. throughput and latency drive the engine in a closed
// loop; prefill and decode measure one phase each.
// Prompts are token ids from a seeded generator (no added tokens but BOS): a run can be repeated.
// Every request of every repetition has its own; the prefix cache helps only with --non-cached.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "bench_compare.h"
#include "bench_grammar.h"
#include "bench_ops.h"
#include "bench_ratios.h"
#include "bench_record.h"
#include "bench_scheduler.h"
#include "bench_serve.h"
#include "bench_spec.h"
#include "bench_steps.h"
#include "bench_ve.h"
#include "closed_loop.h"
#include "command.h"
#include "deepinfer/engine.h"
#include "deepinfer/judge.h"

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
    CommonOptions common;
    std::string name, tag, note, append;
    std::vector<int64_t> batch_sizes;
    int64_t input_len = 128, output_len = 64, num_prompts = 0;
    int64_t context = 1024, non_cached = 0;
    const CLI::Option *context_given = nullptr, *window_steps_given = nullptr;
    int repeat = 3, warmup = 1;
    int64_t warmup_steps = 20, window_steps = 200;
    double window_s = 10, settle_s = 20;
    int windows = 3;
    uint64_t seed = 1;
    double temperature = 0;
    OpBenchOptions ops;
    CompareOptions compare;
    std::vector<std::string> files;  ///< of compare
    std::string prompts;             ///< spec
    double force_accept = -1;        ///< spec
    bool fixed_lengths = false;      ///< spec
    BenchServeOptions serve;
    BenchVeOptions ve;
    GrammarBench grammar;
};

Status write_record(const ordered_json& record, const std::string& append) {
    const std::string text =
        record.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    if (append.empty()) return {};
    std::ofstream file(append, std::ios::app | std::ios::binary);
    file << text;
    if (!file.flush()) return {StatusCode::kInvalidArgument, "cannot append to " + append};
    return {};
}

class Bench {
  public:
    Bench(Engine& engine, Options& options)
        : engine_(engine),
          o_(options),
          prompts_(engine, options.seed),
          line_(stderr_is_terminal() || options.common.progress) {}

    Status run() {
        if (!prompts_.usable())
            return {StatusCode::kInvalidFile,
                    "the vocabulary has no ordinary tokens to make prompts of"};
        for (const int64_t batch : o_.batch_sizes) {
            const EngineStats before = engine_.stats();
            ordered_json record;
            Status s;
            if (o_.name == "decode") {
                s = decode(batch, &record);
            } else if (o_.name == "prefill") {
                s = prefill(batch, &record);
            } else {
                s = closed_loop(batch, &record);
            }
            line_.clear();
            if (interrupted) return {StatusCode::kCancelled, "interrupted"};
            if (!s.ok()) return s;
            engine_.wait_idle();
            const EngineStats after = engine_.stats();
            record["preemptions"] = after.preemptions - before.preemptions;
            record["peak_rss_bytes"] = peak_rss_bytes();
            const Status written = write(record);
            if (!written.ok()) return written;
        }
        return {};
    }

  private:
    SamplingParams sampling(int64_t max_tokens) const {
        SamplingParams p;
        p.temperature = o_.temperature;
        p.seq_seed = o_.seed;
        p.ignore_eos = true;
        p.max_tokens = max_tokens;
        return p;
    }

    ordered_json start(int64_t batch, ordered_json settings) const {
        settings["seed"] = o_.seed;
        settings["temperature"] = o_.temperature;
        settings["ignore_eos"] = true;
        ordered_json r = start_record(o_.name, o_.tag, o_.note, engine_, std::move(settings));
        r["batch"] = batch;
        return r;
    }

    /// throughput: many prompts, `batch` in flight. latency: one batch at a time.
    Status closed_loop(int64_t batch, ordered_json* record) {
        const bool latency = o_.name == "latency";
        const int64_t count = latency ? batch : o_.num_prompts > 0 ? o_.num_prompts : 4 * batch;
        Sample tps, total_tps, rps, elapsed, ttft, itl, e2e;
        int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
        for (int i = -o_.warmup; i < o_.repeat; ++i) {
            show(batch, i);
            std::vector<std::vector<int32_t>> prompts;
            for (int64_t k = 0; k < count; ++k) prompts.push_back(prompts_.make(o_.input_len));
            const Tally t =
                ClosedLoop(engine_, batch, sampling(o_.output_len)).run(std::move(prompts));
            if (!t.error.ok()) return t.error;
            if (interrupted) return {};
            if (i < 0) continue;
            const double s = t.elapsed_s();
            elapsed.add(s);
            tps.add(static_cast<double>(t.output_tokens) / s);
            total_tps.add(static_cast<double>(t.output_tokens + t.prompt_tokens) / s);
            rps.add(static_cast<double>(count) / s);
            ttft.add_all(t.ttft_ms);
            itl.add_all(t.itl_ms);
            e2e.add_all(t.e2e_ms);
            prompt_tokens = t.prompt_tokens;
            cached_tokens = t.cached_tokens;
            output_tokens = t.output_tokens;
        }
        ordered_json& r = *record;
        r = start(batch,
                  {{"num_prompts", count},
                   {"input_len", o_.input_len},
                   {"output_len", o_.output_len},
                   {"repeat", o_.repeat},
                   {"warmup", o_.warmup}});
        r["num_prompts"] = count;
        r["prompt_tokens"] = prompt_tokens;
        r["cached_tokens"] = cached_tokens;
        r["output_tokens"] = output_tokens;
        elapsed.put_spread("elapsed", "_s", &r);
        rps.put_spread("requests_per_s", "", &r);
        tps.put_spread("output_tokens_per_s", "", &r);
        total_tps.put_spread("total_tokens_per_s", "", &r);
        ttft.put_percentiles("ttft", "_ms", &r);
        itl.put_percentiles("itl", "_ms", &r);
        e2e.put_percentiles("e2e", "_ms", &r);
        return {};
    }

    /// Prompts of `context` tokens, `non_cached` of them new, one token generated; counts prompts'.
    Status prefill(int64_t batch, ordered_json* record) {
        const int64_t fresh = o_.non_cached > 0 ? std::min(o_.non_cached, o_.context) : o_.context;
        std::vector<int32_t> shared;
        if (fresh < o_.context) {
            shared = prompts_.make(o_.context - fresh);
            const Tally t = ClosedLoop(engine_, 1, sampling(1)).run({shared});
            if (!t.error.ok()) return t.error;
        }
        Sample tps, latency;
        int64_t prompt_tokens = 0, cached_tokens = 0;
        for (int i = -o_.warmup; i < o_.repeat; ++i) {
            show(batch, i);
            std::vector<std::vector<int32_t>> prompts;
            for (int64_t k = 0; k < batch; ++k) {
                prompts.push_back(shared.empty() ? prompts_.make(o_.context) : shared);
                prompts_.extend(&prompts.back(), o_.context);
            }
            const Tally t = ClosedLoop(engine_, batch, sampling(1)).run(std::move(prompts));
            if (!t.error.ok()) return t.error;
            if (interrupted) return {};
            if (i < 0) continue;
            tps.add(static_cast<double>(t.prompt_tokens - t.cached_tokens) / t.elapsed_s());
            latency.add_all(t.ttft_ms);
            prompt_tokens = t.prompt_tokens;
            cached_tokens = t.cached_tokens;
        }
        ordered_json& r = *record;
        r = start(batch,
                  {{"context", o_.context},
                   {"non_cached", fresh},
                   {"repeat", o_.repeat},
                   {"warmup", o_.warmup}});
        r["context"] = o_.context;
        r["non_cached"] = fresh;
        r["prompt_tokens"] = prompt_tokens;
        r["cached_tokens"] = cached_tokens;  // what the cache really gave, in whole blocks
        tps.put_spread("prefill_tokens_per_s", "", &r);
        latency.put_percentiles("prefill_latency", "_ms", &r);
        latency.put_percentiles("ttft", "_ms", &r);
        return {};
    }

    struct Mark {
        SteadyTime at;
        int64_t steps = 0, tokens = 0;
    };

    /// Steady decoding of `batch` requests: warm-up, then windows of at least window_steps and
    /// window_s.
    Status decode(int64_t batch, ordered_json* record) {
        // All requests must stay until the end: none may wait for blocks of another.
        const EngineConfig& c = engine_.config();
        const int64_t blocks_each = engine_.stats().total_blocks / batch;
        const int64_t most = std::min(c.max_model_len, (blocks_each - 1) * c.block_tokens);
        const int64_t room = most - o_.context;
        if (room < 2) {
            return {StatusCode::kOutOfRange,
                    "--context " + std::to_string(o_.context) + " leaves no room to decode: " +
                        std::to_string(batch) + " requests may have " + std::to_string(most) +
                        " tokens each (max_model_len " + std::to_string(c.max_model_len) + ", " +
                        std::to_string(c.kv_cache_bytes) + " bytes of cache)"};
        }
        struct Shared {
            std::atomic<int64_t> tokens{0}, started{0}, ended{0};
            std::mutex mutex;
            Sample itl_ms, ttft_ms;
            Status error;
            std::atomic<bool> stop{false}, measuring{false};
        };
        auto shared = std::make_shared<Shared>();
        for (int64_t i = 0; i < batch; ++i) {
            Request request;
            request.prompt_token_ids = prompts_.make(o_.context);
            request.sampling = sampling(room);
            RequestCallbacks callbacks;
            callbacks.on_output =
                [shared, submitted = now(), last = SteadyTime{}](const Output& out) mutable {
                    const SteadyTime at = now();
                    if (!out.token_ids.empty()) {
                        const bool first = last == SteadyTime{};
                        const std::lock_guard<std::mutex> lock(shared->mutex);
                        if (first) shared->ttft_ms.add(ms_between(submitted, at));
                        for (size_t k = 0; !first && shared->measuring && k < out.token_ids.size();
                             ++k) {
                            shared->itl_ms.add(ms_between(last, at) /
                                               static_cast<double>(out.token_ids.size()));
                        }
                        last = at;
                        shared->tokens += static_cast<int64_t>(out.token_ids.size());
                        if (first) ++shared->started;
                    }
                    if (out.finished()) {
                        const std::lock_guard<std::mutex> lock(shared->mutex);
                        if (!out.error.ok()) shared->error = out.error;
                        ++shared->ended;
                    }
                    return !shared->stop && !interrupted;
                };
            const Result<uint64_t> number =
                engine_.submit(std::move(request), std::move(callbacks));
            if (!number.ok()) {
                shared->stop = true;
                return number.status();
            }
        }
        const auto over = [&] { return interrupted || shared->ended > 0; };
        const auto mark = [&] { return Mark{now(), engine_.stats().steps, shared->tokens}; };
        const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
        const auto window = [&](int64_t steps, double seconds, Mark* begin, Mark* end) {
            *begin = *end = mark();
            while (!over()) {
                *end = mark();
                if (end->steps - begin->steps >= steps && s_between(begin->at, end->at) >= seconds)
                    return true;
                pause();
            }
            return false;
        };
        line_.show("bench decode: reading " + std::to_string(batch) + " prompts");
        while (shared->started < batch && !over()) pause();

        // Warm-up: at least warmup_steps, then until two successive seconds agree within 2 %.
        Mark a, b;
        bool settled = false;
        if (o_.warmup_steps > 0) window(o_.warmup_steps, 0, &a, &b);
        double rate = 0;
        const SteadyTime warm = now();
        while (!settled && !over() && s_between(warm, now()) < o_.settle_s &&
               window(1, 1.0, &a, &b)) {
            const double next = static_cast<double>(b.steps - a.steps) / s_between(a.at, b.at);
            settled = std::abs(next - rate) < 0.02 * next;
            rate = next;
        }

        Sample sps, per_step, elapsed;
        const int64_t context_start = o_.context + shared->tokens / batch;
        int64_t steps = 0, tokens = 0;
        shared->measuring = true;
        while (static_cast<int>(sps.size()) < o_.windows) {
            line_.show("bench decode: batch " + std::to_string(batch) + ", window " +
                       std::to_string(sps.size() + 1) + " of " + std::to_string(o_.windows));
            if (!window(o_.window_steps, o_.window_s, &a, &b)) break;
            const double s = s_between(a.at, b.at);
            sps.add(static_cast<double>(b.steps - a.steps) / s);
            per_step.add(static_cast<double>(b.tokens - a.tokens) /
                         static_cast<double>(b.steps - a.steps));
            elapsed.add(s);
            steps += b.steps - a.steps;
            tokens += b.tokens - a.tokens;
        }
        shared->measuring = false;
        const int64_t context_end = o_.context + shared->tokens / batch;
        shared->stop = true;
        engine_.wait_idle();
        const std::lock_guard<std::mutex> lock(shared->mutex);
        if (!shared->error.ok()) return shared->error;
        if (interrupted) return {};
        if (sps.empty()) {
            return {
                StatusCode::kOutOfRange,
                "the context was full before one window was measured: " + std::to_string(room) +
                    " tokens can be decoded after --context " + std::to_string(o_.context) +
                    "; ask for fewer --window-steps or --window-s, or a longer --max-model-len"};
        }
        ordered_json& r = *record;
        r = start(batch,
                  {{"context", o_.context},
                   {"warmup_steps", o_.warmup_steps},
                   {"window_steps", o_.window_steps},
                   {"window_s", o_.window_s},
                   {"windows", o_.windows},
                   {"settle_s", o_.settle_s}});
        const double rows = static_cast<double>(batch) / c.cp;
        r["context"] = o_.context;
        r["context_start"] = context_start;
        r["context_end"] = context_end;
        r["decode_num_requests"] = batch;
        r["windows_measured"] = sps.size();
        r["settled"] = settled;
        r["window_steps"] = steps;
        r["window_tokens"] = tokens;
        elapsed.put_spread("elapsed", "_s", &r);
        sps.put_spread("avg_SPS", "", &r);
        // Full acceptance is a ceiling; measured takes the tokens that were really committed.
        r["tps_full"] = sps.median() * rows * (1 + c.nextn);
        r["tps_measured"] = sps.median() * per_step.median() / c.cp;
        r["AL"] = per_step.median() / static_cast<double>(batch);
        const SpecStats spec = engine_.stats().spec;  // since the engine's start
        r["accept_by_pos"] = ordered_json::array();
        for (size_t k = 0; k < spec.verified_at.size(); ++k) {
            r["accept_by_pos"].push_back(spec.accept_rate(k));
        }
        r["verify_per_req"] =
            spec.rounds > 0 ? static_cast<double>(spec.verified) / static_cast<double>(spec.rounds)
                            : 0;
        r["tokens_per_s_per_user"] = sps.median() * per_step.median() / static_cast<double>(batch);
        r["dropped"] = 0;
        shared->itl_ms.put_percentiles("itl", "_ms", &r);
        shared->ttft_ms.put_percentiles("ttft", "_ms", &r);
        return {};
    }

    void show(int64_t batch, int repetition) {
        const std::string what = repetition < 0 ? "warm-up"
                                                : "repetition " + std::to_string(repetition + 1) +
                                                      " of " + std::to_string(o_.repeat);
        line_.show("bench " + o_.name + ": batch " + std::to_string(batch) + ", " + what);
    }

    Status write(const ordered_json& record) const { return write_record(record, o_.append); }

    Engine& engine_;
    Options& o_;
    PromptMaker prompts_;
    ProgressLine line_;
};

Status check(const Options& o) {
    static const std::string kNames[] = {"throughput",
                                         "latency",
                                         "prefill",
                                         "decode",
                                         "ops",
                                         "steps",
                                         "spec",
                                         "serve",
                                         "ratios",
                                         "scheduler",
                                         "grammar",
                                         "ve",
                                         "compare"};
    if (std::find(std::begin(kNames), std::end(kNames), o.name) == std::end(kNames)) {
        std::string all;
        for (const std::string& name : kNames) all += (all.empty() ? "" : ", ") + name;
        return {StatusCode::kInvalidArgument, "bench '" + o.name + "': expected one of " + all};
    }
    if (o.name == "compare" ? o.files.size() != 2 : !o.files.empty())
        return {StatusCode::kInvalidArgument,
                o.name == "compare" ? "bench compare: expected two files, OLD and NEW"
                                    : "bench " + o.name + ": unexpected argument " + o.files[0]};
    for (const int64_t batch : o.batch_sizes) {
        if (batch < 1 || batch > 65536)
            return {StatusCode::kInvalidArgument,
                    "--batch-sizes holds " + std::to_string(batch) + ", expected 1 to 65536"};
    }
    return {};
}

int run_compare(Options& o) {
    o.compare.old_path = o.files[0];
    o.compare.new_path = o.files[1];
    const Result<Comparison> c = compare_records(o.compare);
    if (!c.ok()) return fail(c.status());
    std::fputs(c->text.c_str(), stdout);
    return c->worse ? kExitFailed : kExitOk;
}

int run_ops(Options& o) {
    // Without a model the shapes are the released ones, not the demonstration checkpoint's.
    if (!o.common.model.empty() || !o.common.synthetic.empty()) {
        if (Status s = choose_model(&o.common); !s.ok()) return fail(s);
    }
    o.ops.windows = o.windows;
    o.ops.seed = o.seed;
    install_interrupt_handler();
    const Status s = bench_ops(o.common, o.ops, o.tag, o.note, o.append);
    return s.ok() ? kExitOk : fail(s);
}

int run_serve(Options& o) {
    o.serve.tag = o.tag;
    o.serve.note = o.note;
    o.serve.append = o.append;
    return run_bench_serve(o.serve, o.common);
}

int run_ratio_bench(const Options& o) {
    RatioOptions r;
    r.output_len = o.output_len;
    r.repeat = o.repeat;
    r.seed = o.seed;
    r.tag = o.tag;
    r.note = o.note;
    const Status status = run_ratios(o.common.engine, r, [&](const ordered_json& record) {
        return write_record(record, o.append);
    });
    return status.ok() ? kExitOk : fail(status);
}

int run_scheduler(const Options& o) {
    install_interrupt_handler();
    const Status s = run_bench_scheduler(
        o.batch_sizes, o.windows, o.seed, o.tag, o.note, [&](const ordered_json& record) {
            return write_record(record, o.append);
        });
    return s.ok() ? kExitOk : fail(s);
}

int run_steps(const Options& o) {
    StepsOptions s;
    s.batch_sizes = o.batch_sizes;
    if (o.context_given->count() > 0) s.context = o.context;
    if (o.window_steps_given->count() > 0) s.steps = o.window_steps;
    s.windows = o.windows;
    s.seed = o.seed;
    s.tag = o.tag;
    s.note = o.note;
    s.table = stderr_is_terminal() || o.common.progress;
    const Status status = run_bench_steps(
        o.common.engine, s, [&](const ordered_json& r) { return write_record(r, o.append); });
    return status.ok() ? kExitOk : fail(status);
}

int run_spec(const Options& o) {
    SpecBenchOptions s;
    s.engine = o.common.engine;
    s.engine.spec_forced_acceptance = o.force_accept;
    s.batch_sizes = o.batch_sizes;
    s.prompts = o.prompts;
    s.output_len = o.output_len;
    s.num_prompts = o.num_prompts;
    s.repeat = o.repeat;
    s.warmup = o.warmup;
    s.seed = o.seed;
    s.temperature = o.temperature;
    s.fixed_lengths = o.fixed_lengths;
    s.tag = o.tag;
    s.note = o.note;
    s.progress = o.common.progress;
    const Status status =
        bench_spec(s, [&](const ordered_json& r) { return write_record(r, o.append); });
    return status.ok() ? kExitOk : fail(status);
}

int run_ve(Options& o) {
    o.ve.batch_sizes = o.batch_sizes;
    o.ve.warmup = o.warmup;
    o.ve.repeat = o.repeat;
    const Status s = run_bench_ve(o.common, o.ve, [&](ordered_json r) {
        r["tag"] = o.tag;
        r["commit"] = build_commit();
        r["note"] = o.note;
        return write_record(r, o.append);
    });
    return s.ok() ? (interrupted ? kExitInterrupted : kExitOk) : fail(s);
}

int run(Options& o) {
    if (o.batch_sizes.empty()) {
        o.batch_sizes = {1, 16};
        if (o.name == "spec") o.batch_sizes = {1, 4, 16};
        if (o.name == "scheduler") o.batch_sizes = {16, 64};
    }
    if (Status s = check(o); !s.ok()) return fail(s);
    if (o.name == "compare") return run_compare(o);
    if (o.name == "ops") return run_ops(o);
    if (o.name == "serve") return run_serve(o);
    if (o.name == "scheduler") return run_scheduler(o);
    if (Status s = choose_model(&o.common); !s.ok()) return fail(s);
    if (o.name == "ve") return run_ve(o);
    for (const int64_t batch : o.batch_sizes)
        o.common.engine.max_num_seqs = std::max(o.common.engine.max_num_seqs, batch);
    install_interrupt_handler();
    if (o.name == "spec") return run_spec(o);
    if (o.name == "steps") return run_steps(o);
    if (o.name == "ratios") return run_ratio_bench(o);
    Result<std::unique_ptr<Engine>> engine = Engine::create(o.common.engine);
    if (!engine.ok()) return fail(engine.status());
    if (o.common.progress) std::fprintf(stderr, "%s\n", engine.value()->description().c_str());
    const auto write = [&](const ordered_json& r) { return write_record(r, o.append); };
    const Status s = o.name == "grammar"
                         ? run_bench_grammar(*engine.value(), o.grammar, o.tag, o.note, write)
                         : Bench(*engine.value(), o).run();
    return s.ok() ? kExitOk : fail(s);
}

}  // namespace

Run add_bench(CLI::App& root) {
    auto o = std::make_shared<Options>();
    CLI::App* app =
        root.add_subcommand("bench",
                            "Measures throughput, latency, prefill, decode, drafts, "
                            "serving, pictures or single ops; JSON Lines records on stdout");
    app->add_option(
           "name",
           o->name,
           "throughput, latency, prefill, decode, spec, serve, ve, ops, steps (beside the sum of "
           "their floors), scheduler (a step beside the model), ratios (of settings: truncation, "
           "prefix hits, loops, batching), or compare "
           "OLD NEW")
        ->required();
    app->add_option("files", o->files, "compare: two files of records; exit 1 if NEW is worse");
    app->add_option("--limit", o->compare.limit, "compare: change that is flagged")
        ->check(CLI::Range(0.0, 10.0))
        ->capture_default_str();
    app->add_option("--metric", o->compare.metrics, "compare: only these figures")
        ->delimiter(',')
        ->allow_extra_args(false);
    app->add_option("--ops", o->ops.ops, "ops: only these, names of the op table")
        ->delimiter(',')
        ->allow_extra_args(false);
    app->add_option("--rows", o->ops.rows, "ops: rows of a step (default 1,2,4,8,16,64,512)")
        ->delimiter(',')
        ->allow_extra_args(false);
    app->add_option("--window-ms", o->ops.window_ms, "ops: least milliseconds of a window")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app->add_option(
           "--batch-sizes", o->batch_sizes, "Requests in flight, one record each (default 1,16)")
        ->delimiter(',')
        ->allow_extra_args(false);
    add_bench_ve_options(*app, o->ve);
    app->add_option("--input-len", o->input_len, "throughput, latency: prompt tokens")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app->add_option("--output-len", o->output_len, "throughput, latency: tokens to generate")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app->add_option("--num-prompts",
                    o->num_prompts,
                    "throughput: spec too: requests of a repetition (0 = four times the batch)")
        ->check(CLI::NonNegativeNumber);
    o->context_given =
        app->add_option(
               "--context", o->context, "prefill, decode, steps: prompt tokens (steps: 512)")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    app->add_option("--non-cached",
                    o->non_cached,
                    "prefill: of which new; the rest is shared and in the cache (0 = all)")
        ->check(CLI::NonNegativeNumber);
    app->add_option("--repeat", o->repeat, "Repetitions; median, min and max are reported")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app->add_option("--warmup", o->warmup, "Repetitions before them")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app->add_option("--warmup-steps", o->warmup_steps, "decode: steps before the first window")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app->add_option("--settle-s",
                    o->settle_s,
                    "decode: longest wait for two successive seconds within 2 % (0 = do not wait)")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    o->window_steps_given =
        app->add_option(
               "--window-steps", o->window_steps, "decode: least steps of a window (steps: 48)")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    app->add_option("--window-s", o->window_s, "decode: least seconds of a window")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app->add_option("--windows", o->windows, "decode, steps, ops: windows")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app->add_option("--seed", o->seed, "Of the prompts and of sampling")->capture_default_str();
    app->add_option("--temperature", o->temperature, "0: greedy")->capture_default_str();
    app->add_option("--prompts",
                    o->prompts,
                    "spec: JSON Lines with \"messages\" to ask (default: a dozen questions)");
    app->add_option("--force-accept",
                    o->force_accept,
                    "spec: this many drafts of a round stand whatever the model says; speed only")
        ->check(CLI::NonNegativeNumber);
    app->add_flag("--fixed-lengths",
                  o->fixed_lengths,
                  "spec: measure every fixed number of drafts, 1 to nextn, beside it");
    app->add_option("--tag", o->tag, "Name of the series the records belong to");
    app->add_option("--note", o->note, "Free text in the records");
    app->add_option("--append", o->append, "Append the records to this file too");
    add_bench_serve_options(*app, o->serve);
    add_bench_grammar_options(*app, o->grammar);
    add_model_options(*app, o->common);
    add_engine_options(*app, o->common);
    return [o] { return run(*o); };
}

}  // namespace deepinfer::cli
