// Geometries of the vision tower: the released checkpoint's, and the tiny test checkpoint's.
#pragma once

#include "vision/image_preprocess.h"

namespace deepinfer::testing {

inline VisionConfig released_vision() {
    VisionConfig c;
    c.patch_size = 14;
    c.downsample_ratio = 3;
    c.max_image_tokens = 1024;
    c.min_pixels = 295936;
    return c;
}

inline VisionConfig nano_vision() {
    VisionConfig c = released_vision();
    c.max_image_tokens = 16;
    c.min_pixels = 7056;
    return c;
}

}  // namespace deepinfer::testing
