// Bicubic resize and fit-and-pad, equal to Pillow's to the bit (vision spec 5.2).
#pragma once

#include "vision/image_decode.h"
#include "vision/image_plan.h"

namespace deepinfer {

/// Pillow 13's BICUBIC (a = −0.5, antialiased when shrinking): two passes, each rounded to 8 bit,
/// horizontal first unless the height shrinks by more than twice what the width does; a pass whose
/// size does not change is left out. Both sizes at least 1.
RgbImage resize_bicubic(const RgbImage& image, ImageSize size);

/// The picture at its plan's target size: scaled to fit, centred, the rest grey (127); or stretched
/// if the plan says so.
RgbImage fit_and_pad(RgbImage image, const ImagePlan& plan);

}  // namespace deepinfer
