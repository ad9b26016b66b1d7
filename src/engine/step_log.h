// StepLog: one JSON line a step. Sizes, times and request numbers; never prompts or texts.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "deepinfer/status.h"
#include "engine/step_loop.h"

namespace deepinfer {

class StepLog {
  public:
    /// Appends to `path`. kInvalidArgument if it cannot be opened for writing.
    static Result<std::unique_ptr<StepLog>> open(const std::string& path);
    ~StepLog();
    StepLog(const StepLog&) = delete;
    StepLog& operator=(const StepLog&) = delete;

    void write(const StepPlan& plan,
               const StepResult& result,
               const StepTimes& times,
               const Scheduler& scheduler,
               const BlockSpace& blocks);

  private:
    StepLog(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
    std::FILE* file_;
    std::string path_;
    bool failed_ = false;  ///< a write has failed, and stderr was told
};

}  // namespace deepinfer
