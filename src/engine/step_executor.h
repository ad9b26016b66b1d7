// StepExecutor: what carries a StepPlan out. The model runner is one, the simulator's fake another.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/step_plan.h"

namespace deepinfer {

/// Steps run strictly in launch order: a block or slot that is handed on in step n+1 is written
/// there after everything that step n did with it. The scheduler relies on this when it frees at
/// once. One thread calls an executor.
class StepExecutor {
  public:
    virtual ~StepExecutor() = default;

    /// Starts the step: forks, forward, and sampling of rows without a mask. The plan stays valid
    /// until it is collected. At most two steps are launched and not yet collected.
    virtual void launch(std::shared_ptr<const StepPlan> plan) = 0;

    /// The drafts that the newest launched step verifies for its constrained chunks, so that their
    /// masks can be made; waits for the drafting. Once between launch() and launch_sampling() of a
    /// plan with num_constrained > 0 and drafts.
    virtual std::vector<ChunkDrafts> drafts() = 0;
    /// Whoever wraps this executor hears of the drafts as soon as they exist (before the forward
    /// pass), on the launching thread.
    using DraftListener = std::function<void(std::vector<ChunkDrafts>)>;
    virtual void set_draft_listener(DraftListener listener) { listener_ = std::move(listener); }

    /// Second launch, exactly once after launch() of a plan with num_constrained > 0 and before the
    /// next launch(): samples the constrained rows. Their masks depend on the step before, so that
    /// its commit runs while this step's forward does.
    virtual void launch_sampling(std::vector<RowMask> masks) = 0;

    /// Waits for the oldest launched step.
    virtual StepResult collect() = 0;

  protected:
    DraftListener listener_;
};

/// Runs an executor on a thread of its own, so that launch() returns at once. This is what makes
/// the asynchronous loop asynchronous on a host backend. Destroying it waits for what was launched.
std::unique_ptr<StepExecutor> make_threaded_executor(StepExecutor& inner);

}  // namespace deepinfer
