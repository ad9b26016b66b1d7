// Planning: from a picture's size to the grid of patches and the number of prompt tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/hf_config.h"
#include "deepinfer/image.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct ImageSize {
    int64_t width = 0, height = 0;
    bool operator==(const ImageSize&) const = default;
};

/// What becomes of a picture (vision spec 4). Follows from its size and the checkpoint alone.
struct ImagePlan {
    ImageSize target;                ///< pixels after fit and pad, multiples of the patch size
    int64_t grid_h = 0, grid_w = 0;  ///< patches
    int64_t llm_h = 0, llm_w = 0;    ///< cells of downsample_ratio² patches
    bool stretch = false;            ///< beyond max_wh_ratio: resized without keeping its shape

    int64_t num_patches() const { return grid_h * grid_w; }
    /// Prompt tokens of the span: START, llm_h rows of llm_w IMAGE and a NEWLINE, END.
    int64_t num_tokens() const { return llm_h * (llm_w + 1) + 2; }
    bool operator==(const ImagePlan&) const = default;
};

/// Size after `detail`: kLow shrinks the long side to 512.
ImageSize size_after_detail(ImageSize size, ImageDetail detail);

/// Plan of a picture of this size (both sides at least 1), once: what it gives for its own target
/// may differ (vision spec 4).
ImagePlan plan_image(ImageSize size, const VisionConfig& config);

/// Roles of a span's tokens: 0 start, 1 image, 2 newline, 3 end.
std::vector<int32_t> span_roles(const ImagePlan& plan);

}  // namespace deepinfer
