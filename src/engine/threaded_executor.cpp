// ThreadedExecutor: a queue of launches in, a queue of results out, one thread between them.
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/check.h"
#include "engine/step_executor.h"

namespace deepinfer {
namespace {

class ThreadedExecutor final : public StepExecutor {
  public:
    explicit ThreadedExecutor(StepExecutor& inner) : inner_(inner), thread_([this] { run(); }) {
        inner_.set_draft_listener([this](std::vector<ChunkDrafts> drafts) {
            {
                const std::lock_guard<std::mutex> lock(mutex_);
                drafts_ = std::move(drafts);
            }
            drafted_.notify_one();
        });
    }

    ~ThreadedExecutor() override {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        work_.notify_one();
        thread_.join();
    }

    void launch(std::shared_ptr<const StepPlan> plan) override {
        const bool two_phases = plan->num_constrained > 0;
        push([this, plan = std::move(plan)] { inner_.launch(plan); }, !two_phases);
    }

    void launch_sampling(std::vector<RowMask> masks) override {
        // std::function wants a copyable target.
        auto shared = std::make_shared<std::vector<RowMask>>(std::move(masks));
        push([this, shared] { inner_.launch_sampling(std::move(*shared)); }, true);
    }

    std::vector<ChunkDrafts> drafts() override {
        std::unique_lock<std::mutex> lock(mutex_);
        drafted_.wait(lock, [this] { return drafts_.has_value(); });
        std::vector<ChunkDrafts> d = std::move(*drafts_);
        drafts_.reset();
        return d;
    }

    StepResult collect() override {
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return !results_.empty(); });
        StepResult r = std::move(results_.front());
        results_.pop_front();
        return r;
    }

  private:
    struct Task {
        std::function<void()> run;
        bool completes_step;  ///< the step's last launch: its result is collected afterwards
    };

    void push(std::function<void()> fn, bool completes_step) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            tasks_.push_back({std::move(fn), completes_step});
        }
        work_.notify_one();
    }

    void run() {
        for (;;) {
            Task task;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                work_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
                if (tasks_.empty()) return;
                task = std::move(tasks_.front());
                tasks_.pop_front();
            }
            task.run();
            if (!task.completes_step) continue;
            StepResult r = inner_.collect();
            {
                const std::lock_guard<std::mutex> lock(mutex_);
                results_.push_back(std::move(r));
            }
            done_.notify_one();
        }
    }

    StepExecutor& inner_;
    std::mutex mutex_;
    std::condition_variable work_, done_, drafted_;
    std::optional<std::vector<ChunkDrafts>>
        drafts_;  ///< of the newest step that has constrained ones
    std::deque<Task> tasks_;
    std::deque<StepResult> results_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace

std::unique_ptr<StepExecutor> make_threaded_executor(StepExecutor& inner) {
    return std::make_unique<ThreadedExecutor>(inner);
}

}  // namespace deepinfer
