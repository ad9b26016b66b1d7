// Engine: the public face. Loads the parts, runs the loop on one thread, hands out deltas.
//
// Threads: callers put submissions and aborts into a control queue; the engine's thread drains it
// between steps and owns scheduler, texts and callbacks; with async_scheduling a third thread runs
// the steps (threaded_executor.cpp). Read next: step_loop.h, scheduler.h, model_runner.h.
#include "deepinfer/engine.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

#include "engine/delivery.h"
#include "engine/engine_parts.h"
#include "engine/request_check.h"
#include "engine/sequence_images.h"
#include "engine/step_log.h"
#include "grammar/constraint_compiler.h"
#include "grammar/token_matcher.h"

namespace deepinfer {

struct Engine::Impl {
    std::unique_ptr<EngineParts> parts;
    std::unique_ptr<StepLog> log;
    std::unique_ptr<Delivery> delivery;
    std::unique_ptr<StepLoop> loop;

    mutable std::mutex mutex;
    std::condition_variable wake;  ///< the engine's thread: something to do
    std::condition_variable idle;  ///< waiters: nothing left
    std::condition_variable flushed;
    int64_t flushes_asked = 0, flushes_done = 0, flushed_blocks = 0;
    std::vector<SubmittedRequest> submitted;
    /// Requests whose pictures are being decoded, and how those that failed ended.
    std::map<uint64_t, SubmittedRequest> preparing;
    struct Refused {
        SubmittedRequest request;
        FinishReason reason = FinishReason::kError;
        Status error;
    };
    std::vector<Refused> refused;
    std::vector<uint64_t> aborted;
    bool stopping = false;
    uint64_t next_request = 1;
    int64_t unfinished = 0;  ///< requests accepted and not yet delivered to the end
    EngineStats snapshot;
    EngineStats sums;  ///< engine's thread: times
    std::thread thread;
    std::once_flag vocabulary_made;  ///< of the first constrained request: 0.1 s, 40 MB
    std::unique_ptr<grammar::ConstraintCompiler> constraints;
    std::atomic<bool> constraints_made{false};

    Status constrain(const Request& request, SubmittedRequest* to);
    void run();
    bool drain();
    void publish();
    void prepare_images(uint64_t number, std::vector<ImageInput> inputs, int64_t max_side);
    void on_images(uint64_t number, Result<PreparedImages> prepared);
    void stop_preparing(const std::vector<uint64_t>& numbers, FinishReason reason);
    void observe(const StepPlan& plan, const StepResult& result, const StepTimes& times);
};

void Engine::Impl::observe(const StepPlan& plan, const StepResult& result, const StepTimes& times) {
    sums.plan_us += times.plan_us;
    sums.wait_us += times.wait_us;
    sums.commit_us += times.commit_us;
    sums.step_us += result.step_us;
    sums.sample_us += result.sample_us;
    if (log) log->write(plan, result, times, *parts->scheduler, *parts->blocks);
}

void Engine::Impl::publish() {
    const Scheduler& s = *parts->scheduler;
    EngineStats now = sums;
    now.running = s.num_running();
    now.waiting = s.num_waiting();
    now.total_blocks = parts->blocks->total_blocks();
    now.free_blocks = parts->blocks->free_blocks();
    now.steps = s.stats().steps;
    now.prefill_tokens = s.stats().prefill_tokens;
    now.decode_tokens = s.stats().decode_tokens;
    now.output_tokens = s.stats().output_tokens;
    now.zombie_tokens = s.stats().zombie_tokens;
    now.prefix_query_tokens = s.stats().prefix_query_tokens;
    now.prefix_hit_tokens = s.stats().prefix_hit_tokens;
    now.replayed_tokens = s.stats().replayed_tokens;
    now.skipped_rows = s.stats().skipped_rows;
    now.uncut_prompts = s.stats().uncut_prompts;
    now.saved_windows = s.stats().saved_windows;
    now.restored_windows = s.stats().restored_windows;
    now.preemptions = s.stats().preemptions;
    now.encoded_images = s.stats().encoded_images;
    if (parts->processor != nullptr) {
        const MultimodalProcessor::Stats pictures = parts->processor->stats();
        now.prepared_images = pictures.prepared;
        now.image_crashes = pictures.crashes;
        now.image_bytes_held = pictures.bytes_in_flight;
    }
    now.finished_requests = delivery->num_finished();
    // Some thousand additions: not after every step.
    if (parts->spec != nullptr) {
        if (now.steps % 32 == 0 || !parts->scheduler->has_unfinished()) {
            parts->spec->fill(&sums.spec);
        }
        now.spec = sums.spec;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    unfinished -= now.finished_requests - snapshot.finished_requests;
    snapshot = now;
    if (unfinished == 0) idle.notify_all();
}

/// Hands the pictures of a request that stands in `preparing` to the processor.
void Engine::Impl::prepare_images(uint64_t number,
                                  std::vector<ImageInput> inputs,
                                  int64_t max_side) {
    MultimodalProcessor::Job job;
    job.request = number;
    job.images = std::move(inputs);
    job.max_side = max_side;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto it = preparing.find(number);
        if (it == preparing.end()) return;  // aborted already
        for (const SequenceImage& s : it->second.images->spans) job.plans.push_back(s.plan);
    }
    job.done = [this, number](Result<PreparedImages> r) { on_images(number, std::move(r)); };
    parts->processor->submit(std::move(job));
}

/// A worker's thread: the pictures are ready, or one of them failed the request.
void Engine::Impl::on_images(uint64_t number, Result<PreparedImages> prepared) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto it = preparing.find(number);
        if (it == preparing.end()) return;
        SubmittedRequest request = std::move(it->second);
        preparing.erase(it);
        if (prepared.ok()) {
            attach_images(std::move(prepared).value(),
                          request.specs[0].tenant,
                          request.specs[0].cache_salt,
                          request.images.get());
            for (SequenceSpec& spec : request.specs) spec.images = request.images;
            submitted.push_back(std::move(request));
        } else {
            refused.push_back({std::move(request), FinishReason::kError, prepared.status()});
        }
    }
    wake.notify_one();
}

/// The engine's thread: these requests end, if their pictures are still being decoded.
void Engine::Impl::stop_preparing(const std::vector<uint64_t>& numbers, FinishReason reason) {
    for (const uint64_t number : numbers) {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            const auto it = preparing.find(number);
            if (it == preparing.end()) continue;
            refused.push_back({std::move(it->second), reason, {}});
            preparing.erase(it);
        }
        parts->processor->cancel(number);
    }
}

/// Takes over what callers left. Sleeps while there is nothing to do; false when it is time to
/// stop.
bool Engine::Impl::drain() {
    std::vector<SubmittedRequest> requests;
    std::vector<uint64_t> aborts, unprepared;
    std::vector<Refused> ended;
    bool stop = false;
    {
        std::unique_lock<std::mutex> lock(mutex);
        const bool busy = parts->scheduler->has_unfinished() || loop->in_flight();
        if (!busy) {
            wake.wait(lock, [this] {
                return stopping || !submitted.empty() || !aborted.empty() || !refused.empty() ||
                       flushes_asked != flushes_done;
            });
        }
        requests.swap(submitted);
        aborts.swap(aborted);
        stop = stopping;
        if (flushes_asked != flushes_done) {
            flushed_blocks = parts->blocks->forget_prefixes();
            flushes_done = flushes_asked;
            flushed.notify_all();
        }
        if (stop) {
            for (const auto& [number, request] : preparing) unprepared.push_back(number);
        }
    }
    stop_preparing(stop ? unprepared : aborts, FinishReason::kAbort);
    {
        const std::lock_guard<std::mutex> lock(mutex);
        ended.swap(refused);
    }
    for (Refused& r : ended) {
        delivery->open(r.request);
        delivery->refuse(r.request.number, r.reason, r.error);
    }
    for (SubmittedRequest& r : requests) {
        delivery->open(r);
        parts->scheduler->add(std::move(r.specs));
    }
    for (const uint64_t request : aborts) parts->scheduler->abort(request, *delivery);
    if (stop) {
        for (const uint64_t request : delivery->open_requests()) {
            parts->scheduler->abort(request, *delivery);
        }
    }
    if (!stop || loop->in_flight() || parts->scheduler->has_unfinished()) return true;
    const std::lock_guard<std::mutex> lock(mutex);  // pictures may have come in meanwhile
    return !submitted.empty() || !refused.empty();
}

void Engine::Impl::run() {
    while (drain()) {
        loop->step(*delivery);
        publish();
    }
    publish();
    const Status saved = parts->save_calibration();
    if (!saved.ok()) std::fprintf(stderr, "deepinfer: %s\n", saved.message().c_str());
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config) {
    auto parts = EngineParts::load(config);
    if (!parts.ok()) return parts.status();
    auto impl = std::make_unique<Impl>();
    impl->parts = std::move(parts).value();
    if (!impl->parts->config.step_log.empty()) {
        auto log = StepLog::open(impl->parts->config.step_log);
        if (!log.ok()) return log.status();
        impl->log = std::move(log).value();
    }
    impl->delivery = std::make_unique<Delivery>(*impl->parts->tokenizer, impl->parts->clock);
    Impl* raw = impl.get();
    const StepObserver observer = [raw](const StepPlan& p,
                                        const StepResult& r,
                                        const StepTimes& t) { raw->observe(p, r, t); };
    EngineParts& p = *impl->parts;
    impl->loop = p.config.async_scheduling
                     ? make_async_loop(*p.scheduler, *p.executor, p.clock, observer)
                     : make_plain_loop(*p.scheduler, *p.executor, p.clock, observer);
    impl->snapshot.total_blocks = impl->snapshot.free_blocks = p.blocks->total_blocks();
    if (p.spec != nullptr) p.spec->fill(&impl->snapshot.spec);  // counters begin at zero, seen
    impl->thread = std::thread([raw] { raw->run(); });
    return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::~Engine() {
    {
        const std::lock_guard<std::mutex> lock(impl_->mutex);
        impl_->stopping = true;
    }
    impl_->wake.notify_all();
    impl_->thread.join();
    impl_->parts->processor.reset();  // its threads call back into this object
}

/// Compiles the constraint of a request (on the caller's thread) and gives each sub-sequence a
/// matcher.
Status Engine::Impl::constrain(const Request& request, SubmittedRequest* to) {
    const StructuredOutputArgs& args = request.sampling.so_args;
    std::call_once(vocabulary_made, [this] {
        grammar::CompilerConfig config;
        config.threads = std::max(1, std::min(2, parts->config.threads));
        constraints = std::make_unique<grammar::ConstraintCompiler>(
            grammar::Vocabulary::of(
                *parts->tokenizer, parts->info.vocab_size, parts->info.eos_token_id),
            config);
        constraints_made = true;
    });
    const Result<grammar::CompiledConstraint> compiled = constraints->get(args, request.tenant);
    if (!compiled.ok()) return compiled.status();
    const bool reasoning_first =
        !args.in_reasoning &&
        grammar::reasoning_is_open(request.prompt_token_ids, constraints->vocabulary());
    for (SequenceSpec& spec : to->specs) {
        spec.constraint =
            std::make_shared<grammar::TokenMatcher>(compiled->grammar, reasoning_first);
    }
    for (const grammar::Refusal& note : compiled->notes) {
        to->constraint_notes.push_back(grammar::refusal_sentence(note));
    }
    return {};
}

Result<std::vector<int32_t>> Engine::expand_prompt(const Request& request) const {
    const EngineParts& parts = *impl_->parts;
    DI_RETURN_IF_ERROR(check_request(request, parts.info, parts.image_token_id));
    if (request.images.empty()) return request.prompt_token_ids;
    int64_t max_side = 0;
    Result<ExpandedPrompt> expanded =
        expand_images(request, parts.vision, parts.image_token_id, {}, &max_side);
    if (!expanded.ok()) return expanded.status();
    return std::move(expanded->token_ids);
}

Result<uint64_t> Engine::submit(Request request, RequestCallbacks callbacks) {
    Impl& e = *impl_;
    DI_RETURN_IF_ERROR(check_request(request, e.parts->info, e.parts->image_token_id));
    std::vector<ImageInput> inputs;
    std::shared_ptr<SequenceImages> images;
    int64_t max_side = 0;
    if (!request.images.empty()) {
        Result<ExpandedPrompt> expanded =
            expand_images(request, e.parts->vision, e.parts->image_token_id, {}, &max_side);
        if (!expanded.ok()) return expanded.status();
        request.prompt_token_ids = std::move(expanded->token_ids);
        images = std::make_shared<SequenceImages>(std::move(expanded->images));
        inputs = std::move(request.images);
        std::vector<ImagePlan> plans;
        for (const SequenceImage& s : images->spans) plans.push_back(s.plan);
        DI_RETURN_IF_ERROR(e.parts->processor->check_fits(inputs, plans));
    }
    DI_RETURN_IF_ERROR(e.parts->scheduler->check_fits(
        static_cast<int64_t>(request.prompt_token_ids.size()), request.sampling));
    const Request asked = request.sampling.so_args.empty() ? Request() : request;
    SubmittedRequest r = make_submitted(std::move(request), std::move(callbacks), e.parts->clock);
    if (!asked.sampling.so_args.empty()) DI_RETURN_IF_ERROR(e.constrain(asked, &r));
    uint64_t number = 0;
    {
        const std::lock_guard<std::mutex> lock(e.mutex);
        if (e.stopping) return Status(StatusCode::kUnavailable, "the engine is stopping");
        const int64_t limit = e.parts->config.max_queue;
        const int64_t queued = e.snapshot.waiting + static_cast<int64_t>(e.submitted.size()) +
                               static_cast<int64_t>(e.preparing.size());
        if (limit > 0 && queued >= limit) {
            return Status(StatusCode::kQueueFull,
                          std::to_string(queued) + " requests wait already, max_queue is " +
                              std::to_string(limit));
        }
        number = e.next_request++;
        r.set_number(number);
        ++e.unfinished;
        r.images = images;
        if (images != nullptr) {
            e.preparing.emplace(number, std::move(r));
        } else {
            e.submitted.push_back(std::move(r));
        }
    }
    if (images != nullptr) e.prepare_images(number, std::move(inputs), max_side);
    e.wake.notify_one();
    return number;
}

void Engine::abort(uint64_t request) {
    {
        const std::lock_guard<std::mutex> lock(impl_->mutex);
        impl_->aborted.push_back(request);
    }
    impl_->wake.notify_one();
}

Result<int64_t> Engine::flush_prefix_cache() {
    Impl& e = *impl_;
    std::unique_lock<std::mutex> lock(e.mutex);
    if (e.stopping) return Status(StatusCode::kUnavailable, "the engine is stopping");
    const int64_t mine = ++e.flushes_asked;
    e.wake.notify_one();
    e.flushed.wait(lock, [&] { return e.flushes_done >= mine; });
    return e.flushed_blocks;
}

bool Engine::constraint_is_ready(const StructuredOutputArgs& args) const {
    return impl_->constraints_made && impl_->constraints->ready(args);
}

void Engine::wait_idle() {
    std::unique_lock<std::mutex> lock(impl_->mutex);
    impl_->idle.wait(lock, [this] { return impl_->unfinished == 0; });
}

Result<Completion> Engine::generate(Request request,
                                    RequestCallbacks callbacks,
                                    const std::atomic<bool>* cancel) {
    CompletionCollector collector(request.sampling.n, std::move(callbacks));
    const Result<uint64_t> number = submit(std::move(request), collector.callbacks());
    if (!number.ok()) return number.status();
    bool aborted = false;
    while (!collector.wait_for_ms(20)) {
        if (cancel != nullptr && !aborted && cancel->load()) {
            abort(number.value());
            aborted = true;
        }
    }
    return collector.take();
}

const Tokenizer& Engine::tokenizer() const {
    return *impl_->parts->tokenizer;
}
const EngineConfig& Engine::config() const {
    return impl_->parts->config;
}
const ModelInfo& Engine::model_info() const {
    return impl_->parts->info;
}
std::string Engine::description() const {
    return impl_->parts->description();
}

EngineStats Engine::stats() const {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    return impl_->snapshot;
}

}  // namespace deepinfer
