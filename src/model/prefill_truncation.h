// PrefillTruncation: which rows of a prompt run through which layers.
//
// The layers above the last kv source ("decoder half", mid + 1 … L − 1) own window rows alone, and
// nobody reads a window row older than W. So a prompt of n tokens need not take all its rows
// through them (engine spec 3.1–3.3):
//
//   off       every row runs through every layer
//   compact   rows from n − keep on, and windows of the decoder half end there: an approximation,
//             but a function of the prompt alone, whatever the chunks were
//   exact     the rows that the last row and the windows of later tokens depend on, layer by
//             layer: 1 + (L − l)(W − 1) rows into layer l. The bits of `off`
//
// The last layer's output is needed at the prompt's last row alone, and layer mid attends for the
// rows that the layers above it take. Rows behind the prompt run through all layers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deepinfer {

enum class TruncationMode { kOff, kCompact, kExact };

/// A row set is named by its level: 0 = every row, higher levels have fewer rows. Layer l takes the
/// rows of level_into(l), and level_into(num_layers) is what the head sees.
struct PrefillTruncation {
    TruncationMode mode = TruncationMode::kOff;
    int64_t keep = 0;  ///< compact: prompt rows of the decoder half, >= window
    int window = 0;
    int num_layers = 0;
    int mid = 0;  ///< index of the last layer that is a kv source

    int num_levels() const { return level_into(num_layers); }
    int level_into(int layer) const {
        if (mode == TruncationMode::kOff || layer <= mid) return 0;
        if (mode == TruncationMode::kExact) return layer - mid;
        return layer == num_layers && mid + 1 < num_layers ? 2 : 1;
    }
    /// First position of a prompt that belongs to the level: rows below skip its layers. Positions
    /// behind the prompt belong to every level.
    int64_t first_row(int level, int64_t prompt_tokens) const {
        if (level == 0) return 0;
        if (level == num_levels()) return prompt_tokens - 1;
        const int64_t rows = mode == TruncationMode::kExact
                                 ? 1 + static_cast<int64_t>(num_layers - mid - level) * (window - 1)
                                 : keep;
        return std::max<int64_t>(0, prompt_tokens - rows);
    }
    /// Prompt rows that enter the first layer above mid.
    int64_t decoder_rows(int64_t prompt_tokens) const {
        return prompt_tokens - first_row(level_into(mid + 1), prompt_tokens);
    }
};

/// "off", "compact", "exact".
inline const char* truncation_name(TruncationMode mode) {
    if (mode == TruncationMode::kCompact) return "compact";
    return mode == TruncationMode::kExact ? "exact" : "off";
}

}  // namespace deepinfer
