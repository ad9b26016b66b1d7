// The engine without its model, timed (deepinfer/scheduler_bench.h).
#include <algorithm>
#include <chrono>
#include <ctime>
#include <deque>
#include <memory>
#include <random>

#include "base/check.h"
#include "deepinfer/scheduler_bench.h"
#include "deepinfer/tokenizer.h"
#include "engine/delivery.h"
#include "engine/kv_block_space.h"
#include "engine/scheduler.h"
#include "engine/slot_state.h"
#include "engine/step_loop.h"

namespace deepinfer {
namespace {

constexpr int kBlockTokens = 128;
constexpr int64_t kLogitRows = 16;

double now_us() {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// Processor time of this thread.
double cpu_us() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

/// Keeps the slots' states as the model runner does. Its logits are a few fixed rows, or there are
/// none and tokens follow from position and slot.
class ModellessExecutor final : public StepExecutor {
  public:
    ModellessExecutor(int64_t slots, int64_t vocab, bool samples, uint64_t seed)
        : vocab_(vocab), samples_(samples), sampler_(vocab, {0}) {
        slots_.resize(static_cast<size_t>(slots));
        if (!samples) return;
        // As a trained model gives them: a wide bulk and a short list of strong candidates.
        std::mt19937_64 random(seed);
        std::normal_distribution<float> bulk(0.0F, 2.5F);
        logits_.resize(static_cast<size_t>(kLogitRows * vocab));
        for (float& l : logits_) l = bulk(random);
        for (int64_t i = 0; i < 40 * kLogitRows; ++i) logits_[random() % logits_.size()] += 9.0F;
    }

    void launch(std::shared_ptr<const StepPlan> plan) override {
        StepResult result;
        result.step = plan->step;
        for (const SlotStart& s : plan->starts) slots_[static_cast<size_t>(s.slot)].start(s);
        for (const ChunkPlan& c : plan->chunks) {
            ChunkResult r;
            r.slot = c.slot;
            r.epoch = c.epoch;
            r.start_pos = c.start_pos;
            r.num_rows = c.num_rows();
            if (c.sample) r.tokens.emplace_back();
            result.chunks.push_back(std::move(r));
        }
        const double begin = now_us();
        for (ChunkResult& r : result.chunks) {
            if (r.tokens.empty()) continue;
            SlotState& slot = slots_[static_cast<size_t>(r.slot)];
            r.tokens[0].id = next_token(slot, r.slot);
            r.tokens[0].logprobs.token_id = r.tokens[0].id;
            slot.append(r.tokens[0].id, 0);
        }
        sample_us += now_us() - begin;
        done_.push_back(std::move(result));
    }
    std::vector<ChunkDrafts> drafts() override { return {}; }
    void launch_sampling(std::vector<RowMask>) override {}
    StepResult collect() override {
        StepResult r = std::move(done_.front());
        done_.pop_front();
        return r;
    }

    double sample_us = 0;

  private:
    int32_t next_token(const SlotState& slot, int32_t at) {
        const int64_t position = static_cast<int64_t>(slot.tokens.size());
        if (!samples_) return static_cast<int32_t>(1 + (position * 7 + at * 131) % (vocab_ - 1));
        const float* row = logits_.data() + (position + at) % kLogitRows * vocab_;
        return sampler_.sample(slot.sample_row(row, 0), workspace_).token;
    }

    int64_t vocab_;
    bool samples_;
    Sampler sampler_;
    SamplerWorkspace workspace_;
    std::vector<float> logits_;
    std::vector<SlotState> slots_;
    std::deque<StepResult> done_;
};

/// Scheduler, blocks, loop and delivery of one setting.
class Setting {
  public:
    Setting(const SchedulerBenchOptions& o, int64_t running, bool async, const std::string& mode)
        : options_(o),
          tokenizer_(Tokenizer::numbered(static_cast<int32_t>(o.vocab_size), 1, 0)),
          blocks_(block_options(o, running)),
          scheduler_(scheduler_options(o, running), blocks_, clock_),
          executor_(running, o.vocab_size, mode != "none", o.seed),
          delivery_(tokenizer_, clock_) {
        const StepObserver observer = [this](
                                          const StepPlan&, const StepResult&, const StepTimes& t) {
            plan_us_ += static_cast<double>(t.plan_us);
            commit_us_ += static_cast<double>(t.commit_us);
        };
        loop_ = async ? make_async_loop(scheduler_, executor_, clock_, observer)
                      : make_plain_loop(scheduler_, executor_, clock_, observer);
        result_.running = running;
        result_.loop = async ? "async" : "plain";
        result_.sampling = mode;
        for (int64_t i = 0; i < running; ++i) submit(i, mode);
    }

    SchedulerMeasurement run() {
        // Every prompt runs in the first steps; then all decode.
        for (int64_t i = 0; i < warm_steps(options_, result_.running); ++i) loop_->step(delivery_);
        std::vector<SchedulerMeasurement> windows;
        for (int w = 0; w < options_.windows; ++w) windows.push_back(window());
        std::sort(windows.begin(), windows.end(), [](const auto& a, const auto& b) {
            return a.step_cpu_us < b.step_cpu_us;
        });
        SchedulerMeasurement m = windows[windows.size() / 2];
        for (const SchedulerMeasurement& w : windows) {
            m.min_step_us = m.min_step_us > 0 ? std::min(m.min_step_us, w.step_us) : w.step_us;
        }
        for (const uint64_t open : delivery_.open_requests()) scheduler_.abort(open, delivery_);
        while (loop_->in_flight()) loop_->step(delivery_);
        scheduler_.check_invariants();
        return m;
    }

  private:
    static int64_t warm_steps(const SchedulerBenchOptions& o, int64_t running) {
        return running * o.prompt_tokens / 512 + 32;
    }
    static int64_t most_tokens(const SchedulerBenchOptions& o, int64_t running) {
        return o.prompt_tokens + warm_steps(o, running) + o.windows * o.window_steps + 2;
    }
    static KvBlockSpaceOptions block_options(const SchedulerBenchOptions& o, int64_t running) {
        KvBlockSpaceOptions b;
        b.block_tokens = kBlockTokens;
        b.max_num_seqs = running;
        b.num_blocks = running * (most_tokens(o, running) / kBlockTokens + 2);
        return b;
    }
    static SchedulerConfig scheduler_options(const SchedulerBenchOptions& o, int64_t running) {
        SchedulerConfig c;
        c.max_num_seqs = running;
        c.max_logit_rows = running;
        c.max_model_len = most_tokens(o, running);
        c.max_num_batched_tokens = std::max<int64_t>(512, running);
        c.eos_token_id = 0;
        c.replay_geometry = {128, 8, 4, 12};
        c.truncation.window = 128;
        c.truncation.num_layers = 8;
        c.truncation.mid = 4;
        return c;
    }

    void submit(int64_t i, const std::string& mode) {
        Request r;
        for (int64_t p = 0; p < options_.prompt_tokens; ++p) {
            r.prompt_token_ids.push_back(
                static_cast<int32_t>(1 + (i * 1009 + p * 31) % (options_.vocab_size - 1)));
        }
        r.sampling.ignore_eos = true;
        r.sampling.temperature = mode == "temperature" ? 0.8 : 0;
        r.sampling.seq_seed = options_.seed + static_cast<uint64_t>(i);
        r.sampling.max_tokens = most_tokens(options_, result_.running) - options_.prompt_tokens;
        RequestCallbacks callbacks;
        callbacks.on_output = [this](const Output& o) {
            delivered_ += static_cast<int64_t>(o.token_ids.size());
            return true;
        };
        SubmittedRequest s = make_submitted(std::move(r), std::move(callbacks), clock_);
        s.set_number(static_cast<uint64_t>(i) + 1);
        delivery_.open(s);
        scheduler_.add(std::move(s.specs));
    }

    SchedulerMeasurement window() {
        plan_us_ = commit_us_ = executor_.sample_us = 0;
        const int64_t before = delivered_;
        const double begin = now_us(), cpu = cpu_us();
        for (int64_t i = 0; i < options_.window_steps; ++i) loop_->step(delivery_);
        const auto steps = static_cast<double>(options_.window_steps);
        SchedulerMeasurement m = result_;
        m.step_us = (now_us() - begin) / steps;
        m.step_cpu_us = (cpu_us() - cpu) / steps;
        m.plan_us = plan_us_ / steps;
        m.commit_us = commit_us_ / steps;
        m.sample_us = result_.sampling == "none" ? 0 : executor_.sample_us / steps;
        // A window in which not everybody decodes measures something else.
        DI_CHECK_EQ(delivered_ - before, options_.window_steps * result_.running);
        return m;
    }

    SchedulerBenchOptions options_;
    SteadyClock clock_;
    Tokenizer tokenizer_;
    KvBlockSpace blocks_;
    Scheduler scheduler_;
    ModellessExecutor executor_;
    Delivery delivery_;
    std::unique_ptr<StepLoop> loop_;
    SchedulerMeasurement result_;
    double plan_us_ = 0, commit_us_ = 0;
    int64_t delivered_ = 0;
};

Status check(const SchedulerBenchOptions& o) {
    const auto within = [](const std::string& name, int64_t value, int64_t least, int64_t most) {
        if (value >= least && value <= most) return Status();
        return Status(StatusCode::kInvalidArgument,
                      name + " is " + std::to_string(value) + ", expected " +
                          std::to_string(least) + " to " + std::to_string(most));
    };
    for (const int64_t running : o.running) {
        DI_RETURN_IF_ERROR(within("running", running, 1, 4096));
    }
    DI_RETURN_IF_ERROR(within("prompt_tokens", o.prompt_tokens, 1, 4096));
    DI_RETURN_IF_ERROR(within("vocab_size", o.vocab_size, 64, 1 << 20));
    DI_RETURN_IF_ERROR(within("windows", o.windows, 1, 1000));
    return within("window_steps", o.window_steps, 1, 100000);
}

}  // namespace

Status run_scheduler_bench(const SchedulerBenchOptions& options,
                           const std::function<bool(const SchedulerMeasurement&)>& on_result) {
    DI_RETURN_IF_ERROR(check(options));
    for (const int64_t running : options.running) {
        for (const bool async : {false, true}) {
            for (const char* mode : {"none", "greedy", "temperature"}) {
                Setting setting(options, running, async, mode);
                if (!on_result(setting.run())) return {};
            }
        }
    }
    return {};
}

}  // namespace deepinfer
