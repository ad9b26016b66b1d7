#include "server/later_task.h"

#include <mutex>
#include <optional>

namespace deepinfer::server {
namespace {

/// Holds its own share of everything, so a connection may leave at any time.
struct Job {
    Job(BodyBudget& bodies, Exchange own) : held(bodies), exchange(std::move(own)) {}

    BodyShare held;
    Exchange exchange;
    std::atomic<bool> given_up{false};
    std::mutex mutex;
    bool done = false;
    Answer answer;
};

class LaterTask final : public Task {
  public:
    LaterTask(ServerState& state, const Exchange& exchange, const LaterWork& work)
        : job_(std::make_shared<Job>(state.bodies, exchange)),
          shape_(work.shape),
          stream_(work.stream),
          late_(work.late),
          deadline_(std::chrono::steady_clock::now() + work.most),
          record_(exchange.record) {
        record_.streamed = work.stream;
    }

    ~LaterTask() override { job_->given_up = true; }

    const std::shared_ptr<Job>& job() const { return job_; }

    Progress poll(SteadyTime now) override {
        if (inner_ != nullptr) return inner_->poll(now);
        std::optional<Answer> answer;
        {
            const std::lock_guard<std::mutex> lock(job_->mutex);
            if (job_->done) answer = std::move(job_->answer);
        }
        if (shutdown_ && (!answer || answer->task == nullptr))
            answer = error_answer(
                shape_, api_error(503, "overloaded_error", "the server is shutting down"));
        if (!answer && now >= deadline_) answer = error_answer(shape_, late_);
        if (!answer) return {};
        if (answer->task != nullptr) {
            inner_ = std::move(answer->task);
            if (shutdown_) inner_->cancel(CancelReason::kShutdown);
            return inner_->poll(now);
        }
        record_.error = answer->error;
        return whole_answer(std::move(answer->reply), stream_);
    }

    bool streamed() const override { return stream_; }
    SteadyTime deadline() const override { return inner_ ? inner_->deadline() : deadline_; }
    void cancel(CancelReason reason) override {
        job_->given_up = true;
        if (inner_ != nullptr) inner_->cancel(reason);
        shutdown_ = reason == CancelReason::kShutdown;
    }
    const AccessRecord& record() const override { return inner_ ? inner_->record() : record_; }

  private:
    const std::shared_ptr<Job> job_;
    const ErrorShape shape_;
    const bool stream_;
    const recipe::ApiError late_;
    const SteadyTime deadline_;
    std::unique_ptr<Task> inner_;
    bool shutdown_ = false;
    AccessRecord record_;
};

}  // namespace

Answer answer_later(ServerState& state, Exchange& exchange, LaterWork work) {
    exchange.request.body = std::string();
    auto task = std::make_unique<LaterTask>(state, exchange, work);
    const bool accepted = work.pool->submit(
        [job = task->job(), run = std::move(work.work), shape = work.shape] {
            Answer answer;
            try {
                if (!job->given_up) answer = run(job->exchange, job->held, job->given_up);
            } catch (const std::exception& e) {
                answer = error_answer(
                    shape, api_error(500, "internal_error", "the server met an internal error"));
                answer.error = e.what();
            }
            {
                const std::lock_guard<std::mutex> lock(job->mutex);
                job->answer = std::move(answer);
                job->done = true;
            }
            job->exchange.wake();
        },
        work.lane);
    if (!accepted) return error_answer(work.shape, work.crowded);
    Answer answer;
    answer.task = std::move(task);
    return answer;
}

}  // namespace deepinfer::server
