// bench ratios: claims about the engine as ratios of two settings, measured alternately in one run
// so that what else the machine does meets both. Every record has the processor time beside the
// wall time and the load average: on a busy machine the first is the one to read.
#include "bench_ratios.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "command.h"
#include "deepinfer/engine.h"

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

double cpu_ms() {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    const auto ms = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) * 1000 + static_cast<double>(t.tv_usec) / 1000;
    };
    return ms(use.ru_utime) + ms(use.ru_stime);
}

double wall_ms() {
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// One setting of a comparison and what it has taken so far.
struct Side {
    std::string name;
    std::unique_ptr<Engine> engine;
    Sample wall, cpu;
};

class Ratios {
  public:
    Ratios(const EngineConfig& base, const RatioOptions& o) : base_(base), o_(o), random_(o.seed) {}

    Status run(const std::function<Status(const ordered_json&)>& emit) {
        emit_ = emit;
        DI_RETURN_IF_ERROR(truncation());
        DI_RETURN_IF_ERROR(prefix_hits());
        DI_RETURN_IF_ERROR(loops());
        DI_RETURN_IF_ERROR(invariance());
        return batching();
    }

  private:
    using Change = std::function<void(EngineConfig*)>;
    using Work = std::function<Status(Engine&, int round)>;

    Result<Side> side(const std::string& name, const Change& change) const {
        EngineConfig c = base_;
        if (change) change(&c);
        Result<std::unique_ptr<Engine>> engine = Engine::create(c);
        if (!engine.ok()) return engine.status();
        Side s;
        s.name = name;
        s.engine = std::move(engine).value();
        return s;
    }

    std::vector<int32_t> ids(int64_t count) {
        const Tokenizer& t = (*sides_)[0].engine->tokenizer();
        std::vector<int32_t> out;
        while (static_cast<int64_t>(out.size()) < count) {
            const auto id = static_cast<int32_t>(random_() % static_cast<uint64_t>(t.vocab_size()));
            if (!t.is_added(id)) out.push_back(id);
        }
        return out;
    }

    static Request request(std::vector<int32_t> prompt, int64_t new_tokens) {
        Request r;
        r.prompt_token_ids = std::move(prompt);
        r.sampling.max_tokens = new_tokens;
        r.sampling.temperature = 0;
        r.sampling.ignore_eos = true;
        return r;
    }

    static Status all(Engine& engine, const std::vector<std::vector<int32_t>>& prompts, int64_t n) {
        for (const auto& p : prompts) {
            const Result<uint64_t> number = engine.submit(request(p, n), {});
            if (!number.ok()) return number.status();
        }
        engine.wait_idle();
        return {};
    }

    /// Every side does the round's work, in turn; the first round warms up.
    Status measure(std::vector<Side>& sides, const Work& prepare, const Work& work) {
        for (int round = 0; round <= o_.repeat; ++round) {
            for (Side& s : sides) {
                if (interrupted) return {StatusCode::kCancelled, "interrupted"};
                if (prepare) DI_RETURN_IF_ERROR(prepare(*s.engine, round));
                const double cpu = cpu_ms(), wall = wall_ms();
                DI_RETURN_IF_ERROR(work(*s.engine, round));
                if (round == 0) continue;
                s.wall.add(wall_ms() - wall);
                s.cpu.add(cpu_ms() - cpu);
            }
        }
        return {};
    }

    /// One record: every side's times, and the first one's divided by each other's.
    Status report(const std::string& what, const std::vector<Side>& sides, ordered_json extra) {
        ordered_json r = start_record("ratios", o_.tag, o_.note, *sides[0].engine, {});
        r["ratio"] = what;
        double load[3] = {0, 0, 0};
        if (getloadavg(load, 3) > 0) r["load_average"] = load[0];
        for (const Side& s : sides) {
            s.wall.put_spread(s.name, "_wall_ms", &r);
            s.cpu.put_spread(s.name, "_cpu_ms", &r);
        }
        for (size_t i = 1; i < sides.size(); ++i) {
            const std::string name = sides[0].name + "_over_" + sides[i].name;
            r[name + "_wall"] = sides[0].wall.median() / sides[i].wall.median();
            r[name + "_cpu"] = sides[0].cpu.median() / sides[i].cpu.median();
        }
        for (const auto& item : extra.items()) r[item.key()] = item.value();
        return emit_(r);
    }

    /// Time to the first token of a long prompt, by prefill truncation.
    Status truncation() {
        std::vector<Side> sides;
        for (const char* mode : {"off", "exact", "compact"}) {
            Result<Side> s = side(mode, [mode](EngineConfig* c) {
                c->truncation = mode;
                c->prefix_caching = false;
                c->replay.clear();
            });
            if (!s.ok()) return s.status();
            sides.push_back(std::move(s).value());
        }
        sides_ = &sides;
        std::vector<std::vector<int32_t>> prompts;
        for (int i = 0; i <= o_.repeat; ++i) prompts.push_back(ids(o_.context));
        DI_RETURN_IF_ERROR(measure(sides, {}, [&](Engine& e, int round) {
            return all(e, {prompts[static_cast<size_t>(round)]}, 1);
        }));
        return report("ttft_truncation", sides, {{"prompt_tokens", o_.context}});
    }

    /// Time to the first token after a hit: nothing found, windows stored, replayed. A bounded
    /// replay is an approximation, so it stands beside the cold runs of its own modes too.
    Status prefix_hits() {
        const int64_t hit = o_.hit / base_.block_tokens * base_.block_tokens;
        std::vector<Side> sides;
        struct Kind {
            const char* name;
            const char* replay;      ///< "": nothing is cached
            const char* truncation;  ///< "": the default with batch_invariant
        };
        static constexpr Kind kKinds[] = {{"cold", "", ""},
                                          {"stored", "stored", ""},
                                          {"exact", "exact", ""},
                                          {"bounded", "bounded", "off"},
                                          {"cold_off", "", "off"},
                                          {"bounded_compact", "bounded", "compact"},
                                          {"cold_compact", "", "compact"}};
        for (const Kind& kind : kKinds) {
            const std::string replay = kind.replay;
            Result<Side> s = side(kind.name, [&](EngineConfig* c) {
                c->batch_invariant = *kind.truncation == '\0';
                c->prefix_caching = !replay.empty();
                c->replay = replay;
                c->truncation = kind.truncation;
                c->keep_tokens = 0;
                c->stored_windows = 0;
            });
            if (!s.ok()) return s.status();
            sides.push_back(std::move(s).value());
        }
        sides_ = &sides;
        std::vector<std::vector<int32_t>> shared, whole;
        for (int i = 0; i <= o_.repeat; ++i) {
            shared.push_back(ids(hit + 1));
            whole.push_back(shared.back());
            for (const int32_t id : ids(15)) whole.back().push_back(id);
        }
        DI_RETURN_IF_ERROR(measure(
            sides,
            [&](Engine& e, int round) {
                return e.config().prefix_caching ? all(e, {shared[static_cast<size_t>(round)]}, 1)
                                                 : Status();
            },
            [&](Engine& e, int round) { return all(e, {whole[static_cast<size_t>(round)]}, 1); }));
        ordered_json extra = {{"hit_tokens", hit}, {"prompt_tokens", hit + 16}};
        for (const Side& s : sides) {
            extra[s.name + "_replayed_rows"] = s.engine->stats().replayed_tokens;
        }
        const auto add_ratio = [&](const Side& a, const Side& b) {
            extra[a.name + "_over_" + b.name + "_wall"] = a.wall.median() / b.wall.median();
            extra[a.name + "_over_" + b.name + "_cpu"] = a.cpu.median() / b.cpu.median();
        };
        add_ratio(sides[4], sides[3]);
        add_ratio(sides[6], sides[5]);
        return report("ttft_prefix_hit", sides, extra);
    }

    Work decode_work(int64_t batch) {
        return [this, batch](Engine& e, int round) {
            std::vector<std::vector<int32_t>> prompts;
            for (int64_t i = 0; i < batch; ++i)
                prompts.push_back(
                    {e.model_info().bos_token_id, 100 + static_cast<int32_t>(i), 200 + round});
            return all(e, prompts, o_.output_len);
        };
    }

    /// Two settings at batch 16, decoding.
    Status pair(const std::string& what,
                const std::string& a,
                const Change& change_a,
                const std::string& b,
                const Change& change_b) {
        std::vector<Side> sides;
        for (const auto& [name, change] : {std::pair{a, change_a}, {b, change_b}}) {
            Result<Side> s = side(name, change);
            if (!s.ok()) return s.status();
            sides.push_back(std::move(s).value());
        }
        DI_RETURN_IF_ERROR(measure(sides, {}, decode_work(16)));
        const EngineStats t = sides[0].engine->stats();
        const double whole = static_cast<double>(t.plan_us + t.commit_us + t.step_us);
        return report(
            what,
            sides,
            {{"requests", 16},
             {"output_len", o_.output_len},
             // Of the first side: what is not the model, as shares of all host and step time.
             {"plan_share", static_cast<double>(t.plan_us) / whole},
             {"commit_share", static_cast<double>(t.commit_us) / whole},
             {"sample_share", static_cast<double>(t.sample_us) / whole},
             {"plan_us_per_step",
              static_cast<double>(t.plan_us) /
                  static_cast<double>(std::max<int64_t>(1, t.steps))}});
    }

    Status loops() {
        return pair(
            "async_loop",
            "sync",
            [](EngineConfig* c) { c->async_scheduling = false; },
            "async",
            [](EngineConfig* c) { c->async_scheduling = true; });
    }

    Status invariance() {
        return pair(
            "batch_invariant",
            "on",
            [](EngineConfig* c) { c->batch_invariant = true; },
            "off",
            [](EngineConfig* c) {
                c->batch_invariant = false;
                c->replay.clear();
                c->truncation.clear();
            });
    }

    /// The same 16 answers one after the other, and at once.
    Status batching() {
        std::vector<Side> sides;
        for (const int64_t batch : {1, 16}) {
            Result<Side> s = side("batch" + std::to_string(batch),
                                  [batch](EngineConfig* c) { c->max_num_seqs = batch; });
            if (!s.ok()) return s.status();
            sides.push_back(std::move(s).value());
        }
        DI_RETURN_IF_ERROR(measure(sides, {}, decode_work(16)));
        return report("batching", sides, {{"requests", 16}, {"output_len", o_.output_len}});
    }

    const EngineConfig base_;
    const RatioOptions o_;
    std::mt19937_64 random_;
    std::vector<Side>* sides_ = nullptr;
    std::function<Status(const ordered_json&)> emit_;
};

}  // namespace

Status run_ratios(const EngineConfig& config,
                  const RatioOptions& options,
                  const std::function<Status(const ordered_json&)>& emit) {
    return Ratios(config, options).run(emit);
}

}  // namespace deepinfer::cli
