#include "engine/step_loop.h"

namespace deepinfer {
namespace {

/// Shared parts: planning and finishing with a stop-watch.
class LoopBase : public StepLoop {
  public:
    LoopBase(Scheduler& scheduler,
             StepExecutor& executor,
             const Clock& clock,
             StepObserver observer)
        : scheduler_(scheduler),
          executor_(executor),
          clock_(clock),
          observer_(std::move(observer)) {}

  protected:
    struct Launched {
        std::shared_ptr<const StepPlan> plan;
        int64_t plan_us = 0;
    };

    Launched plan() {
        const int64_t before = clock_.now_us();
        Launched launched;
        launched.plan = scheduler_.plan_step();
        launched.plan_us = clock_.now_us() - before;
        return launched;
    }

    void launch_sampling(const StepPlan& plan) {
        std::vector<ChunkDrafts> drafts;
        if (plan.has_drafts()) drafts = executor_.drafts();
        executor_.launch_sampling(scheduler_.fill_masks(plan, drafts));
    }

    void finish(const Launched& launched, ScheduleSink& sink) {
        StepTimes times;
        times.plan_us = launched.plan_us;
        const int64_t before = clock_.now_us();
        const StepResult result = executor_.collect();
        const int64_t collected = clock_.now_us();
        scheduler_.finish_step(result, sink);
        times.wait_us = collected - before;
        times.commit_us = clock_.now_us() - collected;
        if (observer_) observer_(*launched.plan, result, times);
    }

    Scheduler& scheduler_;
    StepExecutor& executor_;
    const Clock& clock_;
    StepObserver observer_;
};

class PlainLoop final : public LoopBase {
  public:
    using LoopBase::LoopBase;

    bool step(ScheduleSink& sink) override {
        const Launched next = plan();
        if (next.plan->empty()) return false;
        executor_.launch(next.plan);
        if (next.plan->num_constrained > 0) launch_sampling(*next.plan);
        finish(next, sink);
        return true;
    }

    bool in_flight() const override { return false; }
};

class AsyncLoop final : public LoopBase {
  public:
    using LoopBase::LoopBase;

    bool step(ScheduleSink& sink) override {
        Launched next = plan();
        const bool launches = !next.plan->empty();
        if (!launches && !flying_.plan) return false;
        if (launches) executor_.launch(next.plan);
        if (flying_.plan) finish(flying_, sink);
        // The masks of this step needed the tokens of the one before; unconstrained rows did not
        // wait.
        if (next.plan->num_constrained > 0) launch_sampling(*next.plan);
        flying_ = launches ? std::move(next) : Launched{};
        return true;
    }

    bool in_flight() const override { return flying_.plan != nullptr; }

  private:
    Launched flying_;
};

}  // namespace

std::unique_ptr<StepLoop> make_plain_loop(Scheduler& scheduler,
                                          StepExecutor& executor,
                                          const Clock& clock,
                                          StepObserver observer) {
    return std::make_unique<PlainLoop>(scheduler, executor, clock, std::move(observer));
}

std::unique_ptr<StepLoop> make_async_loop(Scheduler& scheduler,
                                          StepExecutor& executor,
                                          const Clock& clock,
                                          StepObserver observer) {
    return std::make_unique<AsyncLoop>(scheduler, executor, clock, std::move(observer));
}

}  // namespace deepinfer
