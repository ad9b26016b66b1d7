// Compares what the shards hold with what the config implies: names, dtypes, shapes, NaN scales.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/hf_config.h"
#include "checkpoint/model_files.h"
#include "checkpoint/weight_names.h"

namespace deepinfer {

struct TensorCheck {
    std::vector<ExpectedTensor> expected;  ///< empty if the config asks for too many
    std::vector<std::string> missing, unexpected, ignored;
    std::vector<std::string>
        wrong;  ///< dtype, shape, NaN scale, index mismatches: one sentence each

    bool ok() const { return missing.empty() && unexpected.empty() && wrong.empty(); }
    /// One message with every missing and every unexpected name and all other sentences. Beyond a
    /// few thousand names it says how many more there are.
    std::string message() const;
};

/// Reads the scales of FP8 and FP4 weights (a NaN scale poisons a whole block) but not the weights,
/// and nothing of the Engram tables, which may be far larger than memory.
TensorCheck check_tensors(const ModelConfig& config, const ModelFiles& files);

}  // namespace deepinfer
