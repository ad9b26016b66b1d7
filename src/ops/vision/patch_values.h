// What the bytes of a patch mean to the tower: v = ((u/255) − 0.5)/0.5 in fp32, in that order, then
// rounded to bf16 (vision spec 5.3).
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"

namespace deepinfer {

/// bf16 of every byte. Padding grey, 127, is −0.0039, not 0.
inline std::array<bf16, 256> patch_values() {
    std::array<bf16, 256> t{};
    for (int u = 0; u < 256; ++u)
        t[static_cast<size_t>(u)] = to_bf16((static_cast<float>(u) / 255.0f - 0.5f) / 0.5f);
    return t;
}

}  // namespace deepinfer
