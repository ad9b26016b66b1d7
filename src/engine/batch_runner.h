// Parts of run_batch that other files and tests use: reading a native line, writing an answer.
#pragma once

#include <string>
#include <vector>

#include "deepinfer/batch.h"

namespace deepinfer {

/// Reads one native line. `fallback_id` names the line if it does not name itself; *id is set in
/// any case.
Result<BatchJob> read_native_line(const Engine& engine,
                                  const std::string& line,
                                  const std::string& fallback_id,
                                  const RenderFunction& render,
                                  std::string* id);

std::string format_native_answer(const std::string& id,
                                 const SamplingParams& sampling,
                                 const Completion& completion,
                                 const std::vector<ParsedOutput>& parsed);
std::string format_native_error(const std::string& id, const Status& error);

}  // namespace deepinfer
