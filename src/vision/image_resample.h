// The inner loops of the resize: weighted sums of pixels along one axis, in integers.
//
// plain_resample is the twin; resample_kernels() is what the machine does fastest. Both give the
// same bytes: sums of 32-bit products that never overflow (|Σ weights| < 2^23, pixels < 2^8), in
// any order.
#pragma once

#include <cstdint>
#include <vector>

#include "vision/image_decode.h"

namespace deepinfer {

constexpr int kTapFractionBits = 22;  ///< Pillow's precision of the 8-bit resampling weights

/// Taps of one axis: output o reads inputs [first[o], first[o] + count[o]).
struct Taps {
    std::vector<int32_t> first, count, weights;
    int32_t width = 0;  ///< weights of an output lie at o · width; count[o] <= width

    const int32_t* of(int64_t o) const { return weights.data() + o * width; }
    int64_t outputs() const { return static_cast<int64_t>(count.size()); }
};

/// byte(Σ_j weight[o][j] · in[first[o] + j] + ½), clamped to 0 … 255, along one axis.
struct ResampleKernels {
    /// out [in.height, taps.outputs()] from the columns of `in`.
    void (*columns)(const RgbImage& in, const Taps& taps, RgbImage& out);
    /// out [taps.outputs(), in.width] from its rows.
    void (*rows)(const RgbImage& in, const Taps& taps, RgbImage& out);
};

extern const ResampleKernels plain_resample;
/// AVX2; nullptr where the processor lacks it.
const ResampleKernels* avx2_resample();
/// The fastest of this machine.
const ResampleKernels& resample_kernels();

}  // namespace deepinfer
