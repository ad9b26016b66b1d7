// One HTTP request's generation: submits to the engine, collects deltas, keeps the time limits.
#include <algorithm>
#include <mutex>

#include "server/api.h"
#include "server/constraints.h"
#include "server/inbox.h"
#include "server/later_task.h"
#include "server/pictures.h"

namespace deepinfer::server {
namespace {

using recipe::ApiError;

class GenerationTask final : public Task {
  public:
    GenerationTask(ServerState& state,
                   const Exchange& exchange,
                   GenerationPlan& plan,
                   int num_choices)
        : state_(state),
          backend_(*state.backend()),
          id_(exchange.id),
          writer_(std::move(plan.writer)),
          stream_(plan.stream),
          protocol_(plan.protocol),
          has_pictures_(!plan.requests.front().images.empty()),
          arrived_(exchange.arrived),
          submitted_(std::chrono::steady_clock::now()),
          prompt_tokens_(plan.prompt_tokens),
          num_open_(num_choices),
          record_(exchange.record) {
        ended_.assign(static_cast<size_t>(num_open_), false);
        last_output_.assign(static_cast<size_t>(num_open_), SteadyTime());
        inbox_ = std::make_shared<Inbox>(num_open_, exchange.wake);
        tokens_ = std::make_shared<std::atomic<int64_t>>(0);
        ++state_.metrics.generations_open;
    }

    ~GenerationTask() override {
        if (!finished_) give_up(CancelReason::kClientGone);
    }

    Status submit(std::vector<Request> requests, const Exchange& exchange) {
        const int n = requests.front().sampling.n;
        int base = 0;
        for (Request& request : requests) {
            RequestCallbacks callbacks;
            callbacks.on_output = [inbox = inbox_, base](const Output& o) {
                return inbox->push(base + o.index, o);
            };
            callbacks.on_prefill = [inbox = inbox_](const PrefillProgress&) { inbox->begin(); };
            const Result<uint64_t> number =
                backend_.submit(std::move(request), std::move(callbacks));
            if (!number.ok()) {
                abort_all();
                finished_ = true;
                --state_.metrics.generations_open;
                return number.status();
            }
            numbers_.push_back(number.value());
            base += n;
        }
        record_.prompt_tokens = prompt_tokens_;
        LiveRequests::Entry entry;
        entry.tenant = exchange.caller.tenant;
        entry.key_id = exchange.caller.id;
        entry.route = std::string(exchange.route->name);
        entry.begun = submitted_;
        entry.prompt_tokens = prompt_tokens_;
        entry.completion_tokens = tokens_;
        entry.cancel = [inbox = inbox_] { inbox->cancel(); };
        state_.live.add(id_, std::move(entry));
        live_ = true;
        return {};
    }

    Progress poll(SteadyTime now) override {
        Progress out;
        std::deque<Inbox::Item> items = inbox_->take();
        if (stream_ && !head_sent_ && !waits_for_pictures(items, now)) {
            head_sent_ = true;
            out.head_ready = true;
            out.head.content_type = "text/event-stream";
            out.head.fields = {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}};
        }
        for (Inbox::Item& item : items) {
            deliver(item, now, &out);
            if (out.done) return out;
        }
        if (!begun_at_ && inbox_->begun()) begun_at_ = now;
        if (shutdown_) {
            fail(api_error(503, "overloaded_error", "the server is shutting down"), &out);
        } else if (inbox_->cancelled()) {
            ++state_.metrics.aborts;
            abort_all();
            fail(api_error(500, "internal_error", "the request was cancelled", "cancelled"), &out);
        } else if (now >= deadline()) {
            ++state_.metrics.aborts;
            abort_all();
            fail(api_error(503, "overloaded_error", timeout_name(now), "timeout"), &out);
        }
        return out;
    }

    bool streamed() const override { return stream_; }

    SteadyTime deadline() const override {
        const ServerLimits& l = state_.config.limits;
        const SteadyTime total = arrived_ + Milliseconds(l.total_timeout_ms);
        if (!begun_at_ && stream_ && !head_sent_)
            return std::min(
                {total, submitted_ + Milliseconds(l.queue_timeout_ms), submitted_ + kHeadWaits});
        if (!begun_at_) return std::min(total, submitted_ + Milliseconds(l.queue_timeout_ms));
        if (!first_token_at_)
            return std::min(total, *begun_at_ + Milliseconds(l.first_token_timeout_ms));
        return std::min(total, latest_output_ + Milliseconds(l.inter_token_timeout_ms));
    }

    void cancel(CancelReason reason) override {
        if (finished_) return;
        if (reason == CancelReason::kShutdown) {
            ++state_.metrics.aborts;
            abort_all();
            shutdown_ = true;
            return;
        }
        give_up(reason);
    }

    const AccessRecord& record() const override { return record_; }

  private:
    /// A stream's head waits until the pictures are known to be whole, so that a broken one is
    /// still answered with 400; but not for ever, behind a long queue.
    static constexpr Milliseconds kHeadWaits{10'000};
    bool waits_for_pictures(const std::deque<Inbox::Item>& items, SteadyTime now) const {
        if (!has_pictures_ || now >= submitted_ + kHeadWaits) return false;
        if (!items.empty()) return items.front().output.finish_reason == FinishReason::kError;
        return !inbox_->begun() || shutdown_ || inbox_->cancelled();
    }

    void deliver(Inbox::Item& item, SteadyTime now, Progress* out) {
        const Output& o = item.output;
        const size_t choice = static_cast<size_t>(item.choice);
        if (ended_[choice]) return;
        if (!begun_at_) begun_at_ = now;
        if (o.finish_reason == FinishReason::kError) {
            abort_all();
            fail(has_pictures_ ? picture_error(o.error, protocol_) : from_status(o.error), out);
            return;
        }
        if (o.finish_reason == FinishReason::kEmptyMask) {
            abort_all();
            fail(api_error(500,
                           "internal_error",
                           o.nan_logits ? "the model's logits are not finite"
                                        : "the constraint allows no further token",
                           "server_error"),
                 out);
            return;
        }
        if (o.finish_reason == FinishReason::kAbort) {
            fail(api_error(503, "overloaded_error", "the engine gave the request up"), out);
            return;
        }
        if (!started_) {
            started_ = true;
            record_.cached_tokens = o.usage.cached_tokens;
            writer_->begin(o, &out->bytes);
        }
        observe(o, choice, now);
        const bool wanted = writer_->output(item.choice, o, &out->bytes);
        *tokens_ = writer_->completion_tokens();
        if (!wanted && !o.finished()) inbox_->refuse(item.choice);
        if (wanted && !o.finished()) return;
        ended_[choice] = true;
        if (--num_open_ == 0) complete(now, out);
    }

    void observe(const Output& o, size_t choice, SteadyTime now) {
        if (o.token_ids.empty()) return;
        if (!first_token_at_) {
            first_token_at_ = now;
            record_.queue_ms = o.timing.queue_ms;
            record_.first_token_ms = ms_between(arrived_, now);
            state_.metrics.time_to_first_token_s.observe(record_.first_token_ms / 1000);
            state_.metrics.first_token_overhead_s.observe(
                std::max(0.0, record_.first_token_ms - o.timing.first_token_ms) / 1000);
            state_.metrics.queue_s.observe(o.timing.queue_ms / 1000);
            state_.metrics.prefill_s.observe(
                std::max(0.0, o.timing.first_token_ms - o.timing.queue_ms) / 1000);
        } else if (last_output_[choice] != SteadyTime()) {
            const double each = ms_between(last_output_[choice], now) / 1000 /
                                static_cast<double>(o.token_ids.size());
            for (size_t i = 0; i < o.token_ids.size(); ++i)
                state_.metrics.inter_token_s.observe(each);
        }
        latest_output_ = last_output_[choice] = now;
        last_timing_ = o.timing;
    }

    void complete(SteadyTime now, Progress* out) {
        if (stream_) {
            writer_->end(&out->bytes);
        } else {
            out->head.body = writer_->whole();
        }
        out->done = true;
        const std::string reason = writer_->finish_reason();
        finish(reason == "length"       ? Outcome::kLength
               : reason == "tool_calls" ? Outcome::kToolCalls
                                        : Outcome::kStop,
               reason);
        Metrics& m = state_.metrics;
        m.e2e_s.observe(ms_between(arrived_, now) / 1000);
        m.inference_s.observe((last_timing_.total_ms - last_timing_.queue_ms) / 1000);
        const double decode_s = (last_timing_.total_ms - last_timing_.first_token_ms) / 1000;
        m.decode_s.observe(decode_s);
        if (writer_->completion_tokens() > 1)
            m.per_output_token_s.observe(decode_s /
                                         static_cast<double>(writer_->completion_tokens() - 1));
    }

    void fail(const ApiError& error, Progress* out) {
        record_.error = error.message;
        if (stream_ && head_sent_) {
            writer_->fail(error, &out->bytes);
        } else if (stream_) {
            *out = whole_answer(error_answer(writer_->error_shape(), error).reply, true);
        } else {
            Answer answer = error_answer(writer_->error_shape(), error);
            out->head = std::move(answer.reply);
        }
        out->done = true;
        finish(Outcome::kError, "error");
    }

    void finish(Outcome outcome, const std::string& reason) {
        if (finished_) return;
        finished_ = true;
        Metrics& m = state_.metrics;
        --m.generations_open;
        ++m.outcomes[static_cast<size_t>(outcome)];
        m.stream_events += writer_->events();
        m.prompt_tokens += prompt_tokens_;
        m.cached_tokens += record_.cached_tokens;
        m.generation_tokens += writer_->completion_tokens();
        m.request_prompt_tokens.observe(static_cast<double>(prompt_tokens_));
        m.request_generation_tokens.observe(static_cast<double>(writer_->completion_tokens()));
        record_.completion_tokens = writer_->completion_tokens();
        record_.finish_reason = reason;
        if (live_) state_.live.remove(id_);
    }

    void give_up(CancelReason reason) {
        if (!numbers_.empty()) ++state_.metrics.aborts;
        if (reason == CancelReason::kSlowClient) ++state_.metrics.slow_clients;
        abort_all();
        finish(Outcome::kAbort,
               reason == CancelReason::kSlowClient ? "slow_client" : "client_gone");
    }

    void abort_all() {
        for (const uint64_t number : numbers_) backend_.abort(number);
    }

    /// Which limit it was: the request's own stage first, then the whole.
    std::string timeout_name(SteadyTime now) const {
        const ServerLimits& l = state_.config.limits;
        if (!begun_at_ && now >= submitted_ + Milliseconds(l.queue_timeout_ms))
            return "the request waited longer than " + std::to_string(l.queue_timeout_ms) +
                   " ms for its turn";
        if (now >= arrived_ + Milliseconds(l.total_timeout_ms))
            return "the request took longer than " + std::to_string(l.total_timeout_ms) + " ms";
        if (!first_token_at_)
            return "the first token took longer than " + std::to_string(l.first_token_timeout_ms) +
                   " ms";
        return "a token took longer than " + std::to_string(l.inter_token_timeout_ms) + " ms";
    }

    ServerState& state_;
    InferenceBackend& backend_;
    const std::string id_;
    std::unique_ptr<AnswerWriter> writer_;
    const bool stream_;
    const recipe::Protocol protocol_;
    const bool has_pictures_;
    const SteadyTime arrived_;
    const SteadyTime submitted_;
    std::shared_ptr<Inbox> inbox_;
    std::shared_ptr<std::atomic<int64_t>> tokens_;
    std::vector<uint64_t> numbers_;
    const int64_t prompt_tokens_;

    int num_open_;  // choices
    std::vector<bool> ended_;
    std::vector<SteadyTime> last_output_;  // by choice
    SteadyTime latest_output_;
    std::optional<SteadyTime> begun_at_;
    std::optional<SteadyTime> first_token_at_;
    Timing last_timing_;
    bool head_sent_ = false;
    bool started_ = false;
    bool live_ = false;
    bool shutdown_ = false;
    bool finished_ = false;
    AccessRecord record_;
};

Answer start_now(ServerState& state, Exchange& exchange, GenerationPlan plan) {
    const ErrorShape shape = plan.writer->error_shape();
    const int num_choices =
        static_cast<int>(plan.requests.size()) * plan.requests.front().sampling.n;
    exchange.record.streamed = plan.stream;
    auto task = std::make_unique<GenerationTask>(state, exchange, plan, num_choices);
    if (Status s = task->submit(std::move(plan.requests), exchange); !s.ok()) {
        const bool constraint = s.message().rfind("so_args: ", 0) == 0;
        return error_answer(
            shape, constraint ? constraint_error(s, plan.constraint_field) : from_status(s));
    }
    Answer answer;
    answer.task = std::move(task);
    return answer;
}

}  // namespace

Answer start_generation(ServerState& state, Exchange& exchange, GenerationPlan plan) {
    const StructuredOutputArgs& args = plan.requests.front().sampling.so_args;
    if (args.empty() || state.compilers == nullptr || state.backend()->constraint_is_ready(args))
        return start_now(state, exchange, std::move(plan));
    LaterWork later;
    later.pool = state.compilers;
    later.lane = exchange.caller.tenant;
    later.shape = plan.writer->error_shape();
    later.stream = plan.stream;
    later.most = Milliseconds(state.config.limits.queue_timeout_ms);
    later.late =
        api_error(503,
                  "overloaded_error",
                  "the constraint waited longer than " +
                      std::to_string(state.config.limits.queue_timeout_ms) + " ms to be compiled",
                  "timeout");
    later.crowded = from_status(
        Status(StatusCode::kQueueFull, "too many constraints of this tenant are being compiled"));
    later.work = [&state, waiting = std::make_shared<GenerationPlan>(std::move(plan))](
                     Exchange& own, BodyShare&, const std::atomic<bool>&) {
        return start_now(state, own, std::move(*waiting));
    };
    return answer_later(state, exchange, std::move(later));
}

}  // namespace deepinfer::server
