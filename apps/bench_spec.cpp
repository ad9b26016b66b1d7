#include "bench_spec.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>

#include "bench_record.h"
#include "command.h"
#include "deepinfer/engine.h"
#include "deepinfer/recipe.h"

namespace deepinfer::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const char* const kQuestions[] = {
    "What is the capital of France?",
    "What is your name?",
    "What is the capital of Japan?",
    "Who wrote Hamlet?",
    "What is 7 + 5?",
    "Say hello.",
    "How many days are in a week?",
    "What color is the sky?",
    "Thank you very much!",
    "What is the opposite of hot?",
    "Count from 1 to 10.",
    "Good morning!",
};

/// Rendered prompts of a file, or of the built-in questions.
Result<std::vector<std::vector<int32_t>>> read_prompts(const std::string& path,
                                                       const Tokenizer& tokenizer) {
    std::vector<recipe::Conversation> conversations;
    if (path.empty()) {
        for (const char* question : kQuestions) {
            recipe::Conversation c;
            c.messages.push_back(recipe::Message::user(question));
            conversations.push_back(std::move(c));
        }
    } else {
        std::ifstream file(path);
        if (!file) return Status(StatusCode::kNotFound, path + ": cannot be read");
        int line_number = 0;
        for (std::string line; std::getline(file, line);) {
            ++line_number;
            const json j = json::parse(line, nullptr, false);
            if (!j.is_object() || !j.contains("messages") || !j["messages"].is_array()) {
                return Status(StatusCode::kInvalidArgument,
                              path + " line " + std::to_string(line_number) +
                                  ": expected an object with \"messages\"");
            }
            if (j.contains("tools")) continue;
            recipe::Conversation c;
            if (j.contains("thinking") && j["thinking"].is_boolean()) c.thinking = j["thinking"];
            for (const json& m : j["messages"]) {
                if (!m.is_object() || !m.contains("role") || !m.contains("content") ||
                    !m["content"].is_string()) {
                    return Status(StatusCode::kInvalidArgument,
                                  path + " line " + std::to_string(line_number) +
                                      ": a message needs a role and a text");
                }
                const std::string text = m["content"];
                if (m["role"] == "system") {
                    c.messages.push_back(recipe::Message::system(text));
                } else if (m["role"] == "assistant") {
                    c.messages.push_back(recipe::Message::assistant(text));
                } else {
                    c.messages.push_back(recipe::Message::user(text));
                }
            }
            conversations.push_back(std::move(c));
        }
        if (conversations.empty()) {
            return Status(StatusCode::kInvalidArgument, path + " holds no conversation");
        }
    }
    std::vector<std::vector<int32_t>> out;
    for (const recipe::Conversation& c : conversations) {
        Result<std::vector<int32_t>> ids = recipe::prompt_ids(tokenizer, recipe::encode_prompt(c));
        if (!ids.ok()) return ids.status();
        out.push_back(std::move(ids).value());
    }
    return out;
}

/// For generated weights, which have no text: ids that repeat with every run.
std::vector<std::vector<int32_t>> random_prompts(int64_t vocab) {
    constexpr int kPrompts = 12, kLength = 32;
    std::vector<std::vector<int32_t>> out(kPrompts);
    uint64_t h = 0x9E3779B97F4A7C15ull;
    for (std::vector<int32_t>& prompt : out) {
        for (int i = 0; i < kLength; ++i) {
            h = h * 6364136223846793005ull + 1442695040888963407ull;
            // The lowest ids are special, and so may the highest be.
            prompt.push_back(static_cast<int32_t>(
                10 + (h >> 33) % static_cast<uint64_t>(std::max<int64_t>(1, vocab - 210))));
        }
    }
    return out;
}

double cpu_s() {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    const auto s = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return s(use.ru_utime) + s(use.ru_stime);
}

struct Run {
    double elapsed_s = 0, cpu_s = 0;
    int64_t tokens = 0;
    Status error;
    double rate() const { return static_cast<double>(tokens) / elapsed_s; }
    double cpu_us_per_token() const { return cpu_s * 1e6 / static_cast<double>(tokens); }
};

/// One way of decoding and what its repetitions took.
struct Side {
    Engine* engine = nullptr;
    int drafts = 0;         ///< of a fixed length
    bool schedule = false;  ///< as many as pay
    Sample rate{}, cpu{}, speedup{}, cpu_speedup{};
    void add(const Run& run, const Run& off) {
        rate.add(run.rate());
        cpu.add(run.cpu_us_per_token());
        speedup.add(run.rate() / off.rate());
        cpu_speedup.add(off.cpu_us_per_token() / run.cpu_us_per_token());
    }
};

/// What SpecStats counted between two moments.
struct Delta {
    SpecStats sums;

    void add(const SpecStats& before, const SpecStats& after) {
        sums.rounds += after.rounds - before.rounds;
        sums.proposed += after.proposed - before.proposed;
        sums.verified += after.verified - before.verified;
        sums.accepted += after.accepted - before.accepted;
        sums.bonus += after.bonus - before.bonus;
        sums.predicted_tokens += after.predicted_tokens - before.predicted_tokens;
        sums.draft_us += after.draft_us - before.draft_us;
        sums.steps_with += after.steps_with - before.steps_with;
        sums.steps_without += after.steps_without - before.steps_without;
        add_timed(before.with, after.with, &sums.with);
        add_timed(before.without, after.without, &sums.without);
        add_each(before.proposed_at, after.proposed_at, &sums.proposed_at);
        add_each(before.verified_at, after.verified_at, &sums.verified_at);
        add_each(before.accepted_at, after.accepted_at, &sums.accepted_at);
    }

  private:
    static void add_timed(const SpecStats::Timed& before,
                          const SpecStats::Timed& after,
                          SpecStats::Timed* sum) {
        sum->steps += after.steps - before.steps;
        sum->us += after.us - before.us;
        sum->tokens += after.tokens - before.tokens;
        sum->rows += after.rows - before.rows;
    }
    static void add_each(const std::vector<int64_t>& before,
                         const std::vector<int64_t>& after,
                         std::vector<int64_t>* sum) {
        sum->resize(after.size());
        for (size_t k = 0; k < after.size(); ++k) {
            (*sum)[k] += after[k] - (k < before.size() ? before[k] : 0);
        }
    }
};

class SpecBench {
  public:
    /// `fixed`: engines that always verify one number of drafts, and one that verifies as many as
    /// pay, to be measured beside.
    SpecBench(Engine& plain,
              Engine& drafting,
              std::vector<std::unique_ptr<Engine>> fixed,
              const SpecBenchOptions& options,
              std::vector<std::vector<int32_t>> prompts)
        : plain_(plain),
          drafting_(drafting),
          fixed_(std::move(fixed)),
          o_(options),
          prompts_(std::move(prompts)),
          line_(stderr_is_terminal() || options.progress) {}

    Status run(int64_t batch, ordered_json* record) {
        Side without{&plain_}, with{&drafting_};
        std::vector<Side> fixed;
        for (const auto& e : fixed_) {
            fixed.push_back({e.get(), e->config().nextn, e->config().varlen});
        }
        Delta delta;
        double elapsed = 0;
        int64_t tokens = 0;
        for (int i = -o_.warmup; i < o_.repeat; ++i) {
            line_.show("bench spec: batch " + std::to_string(batch) + ", " +
                       (i < 0 ? "warm-up" : "repetition " + std::to_string(i + 1)));
            const Run off = run_once(plain_, batch, i);
            const SpecStats before = drafting_.stats().spec;
            const Run on = run_once(drafting_, batch, i);
            const SpecStats after = drafting_.stats().spec;
            std::vector<Run> others;
            for (const Side& f : fixed) others.push_back(run_once(*f.engine, batch, i));
            line_.clear();
            if (interrupted) return {StatusCode::kCancelled, "interrupted"};
            if (!off.error.ok()) return off.error;
            if (!on.error.ok()) return on.error;
            for (const Run& r : others) DI_RETURN_IF_ERROR(r.error);
            if (i < 0) continue;
            delta.add(before, after);
            without.add(off, off);
            with.add(on, off);
            for (size_t f = 0; f < fixed.size(); ++f) fixed[f].add(others[f], off);
            elapsed += on.elapsed_s;
            tokens += on.tokens;
        }
        fill(batch, without, with, delta.sums, elapsed, tokens, record);
        if (!fixed.empty()) add_fixed(with, fixed, record);
        return {};
    }

  private:
    Run run_once(Engine& engine, int64_t batch, int repetition) {
        const int64_t count =
            o_.num_prompts > 0 ? o_.num_prompts : std::max<int64_t>(16, 4 * batch);
        struct Shared {
            std::mutex mutex;
            std::condition_variable changed;
            int64_t in_flight = 0, tokens = 0;
            Status error;
        };
        auto shared = std::make_shared<Shared>();
        const auto begin = std::chrono::steady_clock::now();
        const double cpu = cpu_s();
        for (int64_t i = 0; i < count && !interrupted; ++i) {
            {
                std::unique_lock<std::mutex> lock(shared->mutex);
                shared->changed.wait(lock, [&] { return shared->in_flight < batch; });
                ++shared->in_flight;
            }
            Request r;
            r.prompt_token_ids = prompts_[static_cast<size_t>(i) % prompts_.size()];
            r.sampling.temperature = o_.temperature;
            r.sampling.seq_seed =
                o_.seed + static_cast<uint64_t>(repetition + 1) * 1000 + static_cast<uint64_t>(i);
            r.sampling.max_tokens = o_.output_len;
            r.sampling.ignore_eos = o_.engine.spec_forced_acceptance >= 0;
            RequestCallbacks callbacks;
            callbacks.on_output = [shared](const Output& out) {
                if (out.last) {
                    const std::lock_guard<std::mutex> lock(shared->mutex);
                    shared->tokens += out.usage.completion_tokens;
                    --shared->in_flight;
                    shared->changed.notify_all();
                }
                return !interrupted;
            };
            const Result<uint64_t> number = engine.submit(std::move(r), std::move(callbacks));
            if (!number.ok()) {
                const std::lock_guard<std::mutex> lock(shared->mutex);
                --shared->in_flight;
                shared->error = number.status();
                break;
            }
        }
        engine.wait_idle();
        Run run;
        run.elapsed_s =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        run.cpu_s = cpu_s() - cpu;
        const std::lock_guard<std::mutex> lock(shared->mutex);
        run.tokens = shared->tokens;
        run.error = shared->error;
        return run;
    }

    /// The fixed lengths, and how the engine's own choice compares with the best of them (and with
    /// no drafts, the length 0).
    static void add_fixed(const Side& with, const std::vector<Side>& sides, ordered_json* record) {
        ordered_json rates = ordered_json::object(), cpu = ordered_json::object();
        double best = 1, best_cpu = 1;
        const Side* schedule = nullptr;
        for (const Side& f : sides) {
            if (f.schedule) {
                schedule = &f;
                continue;
            }
            const std::string name = std::to_string(f.drafts);
            rates[name] = f.speedup.median();
            cpu[name] = f.cpu_speedup.median();
            best = std::max(best, f.speedup.median());
            best_cpu = std::max(best_cpu, f.cpu_speedup.median());
        }
        (*record)["speedup_by_fixed_length"] = rates;
        (*record)["speedup_cpu_by_fixed_length"] = cpu;
        (*record)["to_best_fixed"] = with.speedup.median() / best;
        (*record)["to_best_fixed_cpu"] = with.cpu_speedup.median() / best_cpu;
        if (schedule == nullptr) return;
        schedule->speedup.put_spread("varlen_speedup", "", record);
        schedule->cpu_speedup.put_spread("varlen_speedup_cpu", "", record);
        (*record)["varlen_to_best_fixed"] = schedule->speedup.median() / best;
        (*record)["varlen_to_best_fixed_cpu"] = schedule->cpu_speedup.median() / best_cpu;
    }

    void fill(int64_t batch,
              const Side& without,
              const Side& with,
              const SpecStats& s,
              double elapsed,
              int64_t tokens,
              ordered_json* record) const {
        const EngineConfig& c = drafting_.config();
        const SpecStats all = drafting_.stats().spec;
        ordered_json& r = *record;
        r = start_record("spec",
                         o_.tag,
                         o_.note,
                         drafting_,
                         {{"output_len", o_.output_len},
                          {"repeat", o_.repeat},
                          {"warmup", o_.warmup},
                          {"seed", o_.seed},
                          {"temperature", o_.temperature},
                          {"prompts",
                           !o_.prompts.empty()           ? o_.prompts
                           : o_.engine.synthetic.empty() ? "built-in"
                                                         : "random ids"}});
        r["batch"] = batch;
        r["rule"] = c.spec_sampling.empty() ? "coupled" : c.spec_sampling;
        r["spec_budget"] = c.varlen ? c.spec_budget : "full";
        // With forced acceptance the tokens are nobody's: a speed, not a result.
        r["accounting"] = c.spec_forced_acceptance >= 0 ? "synthetic" : "measured";
        r["output_tokens"] = tokens;
        without.rate.put_spread("tps_without", "", &r);
        with.rate.put_spread("tps_measured", "", &r);
        with.speedup.put_spread("speedup", "", &r);
        without.cpu.put_spread("cpu_without", "_us_per_token", &r);
        with.cpu.put_spread("cpu_measured", "_us_per_token", &r);
        with.cpu_speedup.put_spread("speedup_cpu", "", &r);
        // Full acceptance: a ceiling that no text reaches.
        r["tps_full"] = static_cast<double>(s.rounds) * (1 + c.nextn) / elapsed;
        r["AL"] = s.acceptance_length();
        r["AL_full"] = 1 + c.nextn;
        ordered_json rate = ordered_json::array(), conditional = ordered_json::array();
        for (size_t k = 0; k < s.verified_at.size(); ++k) {
            rate.push_back(s.accept_rate(k));
            conditional.push_back(s.conditional_acceptance(k));
        }
        r["accept_by_pos"] = rate;
        r["conditional_by_pos"] = conditional;
        r["draft_tokens_per_proposal"] = s.draft_tokens_per_proposal();
        r["verify_rate"] = s.verify_rate();
        r["verify_per_req"] =
            s.rounds > 0 ? static_cast<double>(s.verified) / static_cast<double>(s.rounds) : 0;
        r["rounds"] = s.rounds;
        r["verified"] = s.verified;
        r["accepted"] = s.accepted;
        r["wasted"] = s.verified - s.accepted;
        r["predicted_tokens"] = s.predicted_tokens;
        r["real_tokens"] = s.accepted + s.rounds;
        r["draft_share_of_time"] = static_cast<double>(s.draft_us) / (elapsed * 1e6);
        r["steps_with"] = s.steps_with;
        r["steps_without"] = s.steps_without;
        // Why drafts pay or do not: what a step with them costs, and what it gives.
        const auto per_step = [](int64_t sum, const SpecStats::Timed& t) {
            return t.steps > 0 ? static_cast<double>(sum) / static_cast<double>(t.steps) : 0;
        };
        r["step_us_with"] = per_step(s.with.us, s.with);
        r["step_us_without"] = per_step(s.without.us, s.without);
        r["step_rows_with"] = per_step(s.with.rows, s.with);
        r["step_rows_without"] = per_step(s.without.rows, s.without);
        r["step_tokens_with"] = per_step(s.with.tokens, s.with);
        r["step_tokens_without"] = per_step(s.without.tokens, s.without);
        // Since the engine's start
        r["ece_raw"] = all.ece_raw;
        r["ece"] = all.ece;
        r["auroc"] = all.auroc;
        r["brier"] = all.brier;
        r["temperature_by_pos"] = all.temperature;
        r["bias_by_pos"] = all.bias;
        r["switched_off"] = all.switched_off;
        r["mean_budget"] = all.budget_steps > 0 ? static_cast<double>(all.budget_drafts) /
                                                      static_cast<double>(all.budget_steps)
                                                : 0;
        r["peak_rss_bytes"] = peak_rss_bytes();
    }

    Engine& plain_;
    Engine& drafting_;
    std::vector<std::unique_ptr<Engine>> fixed_;
    const SpecBenchOptions& o_;
    std::vector<std::vector<int32_t>> prompts_;
    ProgressLine line_;
};

}  // namespace

Status bench_spec(const SpecBenchOptions& options,
                  const std::function<Status(const ordered_json&)>& write) {
    EngineConfig without = options.engine;
    without.nextn = 0;
    without.varlen = false;
    without.spec_calibration.clear();
    without.spec_forced_acceptance = -1;
    Result<std::unique_ptr<Engine>> drafting = Engine::create(options.engine);
    if (!drafting.ok()) return drafting.status();
    if (drafting.value()->config().nextn == 0) {
        return {
            StatusCode::kInvalidArgument,
            "bench spec compares drafts with none, but nextn is 0 (the checkpoint or the backend "
            "has no drafts, or --nextn says so)"};
    }
    Result<std::unique_ptr<Engine>> plain = Engine::create(without);
    if (!plain.ok()) return plain.status();
    if (!options.engine.synthetic.empty() && !options.prompts.empty()) {
        return {StatusCode::kInvalidArgument,
                "--prompts with --synthetic: generated weights have no text"};
    }
    auto prompts = options.engine.synthetic.empty()
                       ? read_prompts(options.prompts, plain.value()->tokenizer())
                       : Result<std::vector<std::vector<int32_t>>>(
                             random_prompts(plain.value()->model_info().vocab_size));
    if (!prompts.ok()) return prompts.status();
    std::vector<std::unique_ptr<Engine>> fixed;
    const int longest = options.fixed_lengths ? drafting.value()->config().nextn : 0;
    for (int n = 1; n <= longest + 1; ++n) {
        EngineConfig c = options.engine;
        c.spec_calibration.clear();
        if (n <= longest) {
            c.nextn = n;
            c.varlen = c.spec_auto_off = false;
        } else if (longest == 0 || c.varlen) {
            break;
        } else {
            c.varlen = true;
        }
        Result<std::unique_ptr<Engine>> engine = Engine::create(c);
        if (!engine.ok()) return engine.status();
        fixed.push_back(std::move(engine).value());
    }
    SpecBench bench(
        *plain.value(), *drafting.value(), std::move(fixed), options, std::move(prompts).value());
    for (const int64_t batch : options.batch_sizes) {
        ordered_json record;
        DI_RETURN_IF_ERROR(bench.run(batch, &record));
        DI_RETURN_IF_ERROR(write(record));
    }
    return {};
}

}  // namespace deepinfer::cli
