// Preprocessing: a picture to the patches that the vision tower reads, and its identity.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "deepinfer/image.h"
#include "vision/image_decode.h"
#include "vision/image_plan.h"

namespace deepinfer {

/// SHA-256 of the patches, the plan and the planning parameters: equal for equal pictures whatever
/// file they came from. Computed here, never taken from a client or a worker.
using ImageDigest = std::array<uint8_t, 32>;

/// A picture ready for the tower. Patches are kept as bytes (ops/vision/patch_values.h gives their
/// values): half the memory of bf16.
struct PreparedImage {
    ImagePlan plan;
    std::vector<uint8_t> patches;  ///< [num_patches, 3, p, p]: channel, y, x inside a patch
    ImageDigest digest{};
};

/// Header and limits alone: what admission needs. kInvalidArgument, kOutOfRange.
Result<ImagePlan> plan_input(const ImageInput& input, const VisionConfig& config, int64_t max_side);

/// Patches of a picture of the plan's target size.
std::vector<uint8_t> cut_patches(const RgbImage& image, const ImagePlan& plan, int64_t patch_size);

/// Decode, shrink by detail, fit, cut. `plan` is plan_input()'s; a picture that turns out to have
/// another plan is refused. Writes num_patches · 3p² bytes to `patches`.
Status preprocess_into(const ImageInput& input,
                       const ImagePlan& plan,
                       const VisionConfig& config,
                       int64_t max_side,
                       uint8_t* patches);

/// All of it, on this thread.
Result<PreparedImage> preprocess_image(const ImageInput& input,
                                       const VisionConfig& config,
                                       int64_t max_side);

ImageDigest image_digest(const std::vector<uint8_t>& patches,
                         const ImagePlan& plan,
                         const VisionConfig& config);

}  // namespace deepinfer
