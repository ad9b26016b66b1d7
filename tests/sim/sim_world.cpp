#include "sim/sim_world.h"

#include <algorithm>

#include "sim/sim_blocks.h"

namespace deepinfer::sim {

SimWorld::SimWorld(const WorldConfig& config) : config_(config), random_(config.seed) {
    FakeMemoryShape shape;
    shape.num_blocks = config.num_blocks;
    shape.num_slots = config.max_num_seqs;
    shape.ring_len = shape.window + std::max(4, 2 * (1 + config.nextn));
    shape.accept_share = config.accept_share;
    blocks_ = make_sim_blocks(config, shape.block_tokens);
    SchedulerConfig s;
    s.max_num_seqs = config.max_num_seqs;
    s.max_num_batched_tokens = config.max_num_batched_tokens;
    s.max_model_len = config.max_model_len;
    s.max_logit_rows = config.max_num_seqs * (1 + config.nextn);
    s.nextn = config.nextn;
    s.long_prefill_token_threshold = config.threshold;
    s.eos_token_id = kEos;
    s.prefix_caching = config.prefix_caching;
    s.replay = ReplayKind::kBounded;
    s.replay_geometry.window = shape.window;
    s.replay_geometry.num_layers = 1;
    s.replay_geometry.backtrack = shape.ring_len - shape.window;
    s.chunk_align = 2;
    s.lookback = shape.lookback;
    if (config.preempt_share > 0) {
        const uint64_t cut = static_cast<uint64_t>(config.preempt_share * 1e9);
        s.force_preempt = [cut](uint64_t step, const Sequence& seq) {
            return mix(step * 1000003 + seq.spec.request * 31 +
                       static_cast<uint64_t>(seq.spec.index)) %
                       1000000000 <
                   cut;
        };
    }
    if (config.varlen) {
        SpecOptions o;
        o.nextn = config.nextn;
        o.varlen = true;
        spec_ = std::make_unique<SpecPlanner>(o);
        spec_->costs().set({{1, 1100.0}, {200, 21000.0}}, {{1, 200.0}, {100, 210.0}});
        s.spec = spec_.get();
    }
    scheduler_ = std::make_unique<Scheduler>(s, *blocks_, clock_);
    fake_ = std::make_unique<FakeExecutor>(shape);
    fake_->keep_plans = config.keep_plans;
    StepExecutor* executor = fake_.get();
    if (config.threaded) {
        threaded_ = make_threaded_executor(*fake_);
        executor = threaded_.get();
    }
    loop_ = config.async ? make_async_loop(*scheduler_, *executor, clock_, {})
                         : make_plain_loop(*scheduler_, *executor, clock_, {});
}

SimWorld::~SimWorld() = default;

void SimWorld::fail(const std::string& what) {
    if (fault_.empty()) fault_ = what;
}

void SimWorld::arrive() {
    Given g;
    // A few common beginnings, so that prefixes are shared; half of the prompts have one.
    if (uniform() < 0.5) {
        const uint64_t base = static_cast<uint64_t>(between(0, 3));
        const int64_t length = between(1, 90);
        for (int64_t i = 0; i < length; ++i) {
            g.prompt.push_back(
                static_cast<int32_t>(mix(base * 1000 + static_cast<uint64_t>(i)) % kVocab));
        }
    }
    const int64_t own = between(g.prompt.empty() ? 1 : 0, 40);
    for (int64_t i = 0; i < own; ++i)
        g.prompt.push_back(static_cast<int32_t>(between(0, kVocab - 1)));

    SamplingParams params;
    const int64_t room = config_.max_model_len - static_cast<int64_t>(g.prompt.size());
    params.max_tokens = between(1, std::min<int64_t>(room, 40));
    if (uniform() < 0.05) params.max_tokens.reset();
    params.ignore_eos = !config_.with_stops || uniform() < 0.3;
    params.priority = static_cast<int>(between(-1, 1));
    params.n = uniform() < config_.siblings_share ? static_cast<int>(between(2, 4)) : 1;
    g.params = std::make_shared<const SamplingParams>(params);
    g.seed = random_();
    g.constrained = uniform() < config_.constrained_share;
    g.n = params.n;
    if (!scheduler_->check_fits(static_cast<int64_t>(g.prompt.size()), params).ok()) return;

    const uint64_t number = next_request_++;
    std::vector<SequenceSpec> specs;
    for (int32_t i = 0; i < g.n; ++i) {
        SequenceSpec spec;
        spec.request = number;
        spec.index = i;
        spec.prompt = g.prompt;
        spec.sampling = g.params;
        spec.seed = g.seed;
        spec.priority = params.priority;
        spec.tenant = "tenant" + std::to_string(number % 3);
        if (g.constrained) spec.constraint = std::make_shared<HashConstraint>(g.prompt);
        specs.push_back(std::move(spec));
    }
    given_[number] = std::move(g);
    scheduler_->add(std::move(specs));
}

std::string SimWorld::run() {
    for (int64_t step = 0;
         step < config_.steps || scheduler_->has_unfinished() || loop_->in_flight();
         ++step) {
        if (step > config_.steps * 20 + 10000) {
            fail("no end: a request makes no progress");
            break;
        }
        if (step < config_.steps) {
            double arrivals = config_.arrivals_per_step;
            while (arrivals > 0 && uniform() < arrivals) {
                arrive();
                if (uniform() < config_.abort_share)
                    abort_at_[next_request_ - 1] = step + between(0, 40);
                arrivals -= 1;
            }
        }
        for (auto it = abort_at_.begin(); it != abort_at_.end();) {
            if (it->second > step) {
                ++it;
                continue;
            }
            scheduler_->abort(it->first, *this);
            it = abort_at_.erase(it);
        }
        loop_->step(*this);
        scheduler_->check_invariants();
        clock_.now += between(100, 200000);
        if (!fault_.empty()) break;
        if (!config_.threaded && !fake_->fault.empty()) break;
    }
    threaded_.reset();
    fail(fake_->fault);
    if (fault_.empty() && blocks_->free_blocks() != blocks_->total_blocks())
        fail("blocks are lost");
    for (const auto& [number, g] : given_) {
        for (int32_t i = 0; i < g.n && fault_.empty(); ++i) {
            if (finished_.count({number, i}) == 0) fail("a sub-sequence never ended");
        }
    }
    return fault_;
}

FinishReason SimWorld::on_token(const Sequence& seq,
                                const SampledToken& token,
                                FinishReason reason) {
    std::vector<int32_t>& got = got_[{seq.spec.request, seq.spec.index}];
    got.push_back(token.id);
    if (seq.num_output() != static_cast<int64_t>(got.size())) fail("tokens out of order");
    const Given& g = given_[seq.spec.request];
    uint64_t prefix = 0;
    for (const int32_t t : g.prompt) prefix = extend(prefix, t);
    for (const int32_t t : got) prefix = extend(prefix, t);
    if (config_.with_stops && reason != FinishReason::kStop && consumer_stops(prefix)) {
        reason = FinishReason::kStop;
    }
    if (reason != FinishReason::kNone) close(seq, reason);
    return reason;
}

void SimWorld::on_prefill(const Sequence&, const ChunkResult&) {}

void SimWorld::on_ended(const Sequence& seq, FinishReason reason) {
    if (reason == FinishReason::kAbort) ++aborted_;
    close(seq, reason);
}

void SimWorld::close(const Sequence& seq, FinishReason reason) {
    const std::pair<uint64_t, int32_t> key(seq.spec.request, seq.spec.index);
    const std::vector<int32_t>& got = got_[key];
    if (!finished_.emplace(key, Finished{got, reason}).second) fail("a sub-sequence ended twice");
    const Given& g = given_[key.first];
    Expected want = expected_output(g.prompt,
                                    *g.params,
                                    g.seed,
                                    key.second,
                                    g.constrained,
                                    config_.max_model_len,
                                    config_.with_stops);
    if (reason == FinishReason::kAbort) {
        if (got.size() > want.tokens.size()) fail("an aborted sequence went past its end");
        want.tokens.resize(std::min(got.size(), want.tokens.size()));
        want.reason = reason;
    }
    if (got != want.tokens) fail("request " + std::to_string(key.first) + ": wrong tokens");
    if (reason != want.reason) fail("request " + std::to_string(key.first) + ": wrong reason");
}

}  // namespace deepinfer::sim
