// Checks of what a judge's files may say about a run, before anything is sized or indexed by it.
#pragma once

#include <string>

#include "checkpoint/hf_config.h"
#include "judge/tensor_file.h"

namespace deepinfer {

/// The rows a file speaks of: prompt tokens, or decode steps after a prompt.
struct PhaseShape {
    bool decode = false;
    int64_t num_rows = 0;
    int64_t first_position = 0;  ///< position of row 0
    int64_t total_tokens = 0;    ///< tokens in the caches at the end: widths of the masks
};

/// L{l}.entries (prompt) and L{l}.topk_steps (decode): integer vectors, ascending, inside their
/// range. kInvalidFile names the tensor, what was found and what was expected; `where` names the
/// file.
Status check_given(const TensorMap& file,
                   const ModelConfig& config,
                   const PhaseShape& phase,
                   const std::string& where);

/// Forced choices: layers that make such a choice, exact shapes, distinct ascending experts, and
/// only entries and blocks that the row can see.
Status check_choices(const TensorMap& choices, const ModelConfig& config, const PhaseShape& phase);

}  // namespace deepinfer
