#include "vision/image_resample.h"

#include <algorithm>

namespace deepinfer {
namespace {

constexpr int32_t kHalf = 1 << (kTapFractionBits - 1);

uint8_t to_byte(int32_t sum) {
    return static_cast<uint8_t>(std::clamp(sum >> kTapFractionBits, 0, 255));
}

void columns(const RgbImage& in, const Taps& taps, RgbImage& out) {
    for (int64_t y = 0; y < in.height; ++y) {
        uint8_t* dst = out.row(y);
        for (int64_t o = 0; o < taps.outputs(); ++o) {
            const int32_t* k = taps.of(o);
            const uint8_t* p = in.row(y) + 3 * taps.first[static_cast<size_t>(o)];
            int32_t r = kHalf, g = kHalf, b = kHalf;
            for (int32_t j = 0; j < taps.count[static_cast<size_t>(o)]; ++j) {
                r += k[j] * p[3 * j];
                g += k[j] * p[3 * j + 1];
                b += k[j] * p[3 * j + 2];
            }
            dst[3 * o] = to_byte(r);
            dst[3 * o + 1] = to_byte(g);
            dst[3 * o + 2] = to_byte(b);
        }
    }
}

void rows(const RgbImage& in, const Taps& taps, RgbImage& out) {
    const int64_t n = 3 * in.width;
    std::vector<int32_t> sums(static_cast<size_t>(n));
    for (int64_t o = 0; o < taps.outputs(); ++o) {
        std::fill(sums.begin(), sums.end(), kHalf);
        int32_t* s = sums.data();
        for (int32_t j = 0; j < taps.count[static_cast<size_t>(o)]; ++j) {
            const uint8_t* src = in.row(taps.first[static_cast<size_t>(o)] + j);
            const int32_t k = taps.of(o)[j];
            for (int64_t i = 0; i < n; ++i) s[i] += k * src[i];
        }
        uint8_t* dst = out.row(o);
        for (int64_t i = 0; i < n; ++i) dst[i] = to_byte(s[i]);
    }
}

}  // namespace

const ResampleKernels plain_resample = {columns, rows};

const ResampleKernels& resample_kernels() {
    static const ResampleKernels* const best =
        avx2_resample() != nullptr ? avx2_resample() : &plain_resample;
    return *best;
}

}  // namespace deepinfer
