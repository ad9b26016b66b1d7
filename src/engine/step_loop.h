// The two ways to run steps. Both give the same tokens; a test holds them to it.
//
//   plain   plan, launch, wait, finish
//   async   plan and launch step n+1 while step n runs, then wait for n and finish it: the
//   scheduler,
//           text and callbacks cost no device time
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/clock.h"
#include "engine/scheduler.h"
#include "engine/step_executor.h"

namespace deepinfer {

/// What one finished step took, for the step log and statistics.
struct StepTimes {
    int64_t plan_us = 0;    ///< plan_step
    int64_t wait_us = 0;    ///< collect
    int64_t commit_us = 0;  ///< finish_step: text and callbacks included
};

/// Called after every finished step.
using StepObserver = std::function<void(const StepPlan&, const StepResult&, const StepTimes&)>;

/// One thread: the scheduler's.
class StepLoop {
  public:
    virtual ~StepLoop() = default;
    /// One trip. False if there was nothing to plan and nothing in flight.
    virtual bool step(ScheduleSink& sink) = 0;
    /// Whether a launched step waits to be finished.
    virtual bool in_flight() const = 0;
};

/// All references outlive the loop. `observer` may be empty.
std::unique_ptr<StepLoop> make_plain_loop(Scheduler& scheduler,
                                          StepExecutor& executor,
                                          const Clock& clock,
                                          StepObserver observer);
std::unique_ptr<StepLoop> make_async_loop(Scheduler& scheduler,
                                          StepExecutor& executor,
                                          const Clock& clock,
                                          StepObserver observer);

}  // namespace deepinfer
