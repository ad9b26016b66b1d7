// EngineLab: an engine without its thread, for tests that intervene: forced preemption, tiny pools,
// one step at a time. Everything else is the real thing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/delivery.h"
#include "engine/engine_parts.h"
#include "engine/step_loop.h"

namespace deepinfer::testing {

/// For tests that load an engine without a lab. More than once does nothing.
void register_lab_backends();

class EngineLab {
  public:
    /// Stops the test program with the message if the engine cannot be loaded.
    explicit EngineLab(const EngineConfig& config, const EngineHooks& hooks = {});
    ~EngineLab();

    /// The checks of Engine::submit, then the scheduler.
    Result<uint64_t> submit(Request request, std::shared_ptr<TokenConstraint> constraint = nullptr);
    /// One trip of the loop. False if nothing ran.
    bool step() { return loop_->step(*delivery_); }
    void run_until_idle();
    void abort(uint64_t request) { parts_->scheduler->abort(request, *delivery_); }
    /// What has been delivered of a request so far.
    const Completion& completion(uint64_t request) const { return *completions_.at(request); }
    bool finished(uint64_t request) const { return finished_.count(request) != 0; }

    /// Submits all, runs, returns the completions in order.
    std::vector<Completion> run(const std::vector<Request>& requests);

    EngineParts& parts() { return *parts_; }
    Scheduler& scheduler() { return *parts_->scheduler; }

  private:
    std::unique_ptr<EngineParts> parts_;
    std::unique_ptr<Delivery> delivery_;
    std::unique_ptr<StepLoop> loop_;
    std::map<uint64_t, std::shared_ptr<Completion>> completions_;
    std::map<uint64_t, bool> finished_;
    uint64_t next_ = 1;
};

/// SHA-256 over ids, reasons and the bits of every log-probability, hex.
std::string digest(const Completion& completion);

/// `count` pseudo-random ids below `vocab` that are neither special nor an image; fixed by the
/// seed.
std::vector<int32_t> random_ids(uint64_t seed, int64_t count, int64_t vocab);

/// Configuration for a test checkpoint: CPU backend, two threads, small limits.
EngineConfig lab_config(const std::string& checkpoint);

}  // namespace deepinfer::testing
