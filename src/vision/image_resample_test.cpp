// The fast resize loops against their plain twin, byte for byte. Pillow's own pixels judge both
// (image_pixels_test.cpp).
#include "vision/image_resample.h"

#include <gtest/gtest.h>

#include "support/seeded_random.h"

namespace deepinfer {
namespace {

using testing::SeededRandom;

RgbImage noise(int64_t width, int64_t height, SeededRandom& random) {
    RgbImage image(width, height);
    for (uint8_t& p : image.pixels) p = static_cast<uint8_t>(random.below(256));
    return image;
}

/// Taps anywhere inside [0, in), also up to the last input; weights of both signs, so that sums
/// leave 0 … 255 on both sides.
Taps any_taps(int64_t in, int64_t out, SeededRandom& random) {
    Taps taps;
    taps.width = static_cast<int32_t>(std::min<int64_t>(in, 9));
    taps.weights.assign(static_cast<size_t>(out * taps.width), 0);
    for (int64_t o = 0; o < out; ++o) {
        const auto count = static_cast<int32_t>(1 + random.below(taps.width));
        taps.count.push_back(count);
        taps.first.push_back(static_cast<int32_t>(
            o % 3 == 0 ? in - count : static_cast<int64_t>(random.below(in - count + 1))));
        for (int32_t j = 0; j < count; ++j) {
            taps.weights[static_cast<size_t>(o * taps.width + j)] =
                static_cast<int32_t>(random.below(1 << 21)) - (1 << 20);
        }
    }
    return taps;
}

TEST(ImageResample, Avx2GivesTheTwinsBytes) {
    const ResampleKernels* fast = avx2_resample();
    if (fast == nullptr) GTEST_SKIP() << "NOT RUN: this processor has no AVX2";
    SeededRandom random("resample");
    const int64_t sides[] = {1, 2, 3, 7, 21, 22, 43, 64, 65, 130};
    int clamped = 0;
    for (const int64_t width : sides) {
        for (const int64_t height : sides) {
            const RgbImage in = noise(width, height, random);
            const int64_t out = 1 + static_cast<int64_t>(random.below(70));
            RgbImage want(out, height), got(out, height);
            Taps taps = any_taps(width, out, random);
            plain_resample.columns(in, taps, want);
            fast->columns(in, taps, got);
            ASSERT_EQ(got.pixels, want.pixels) << "columns of " << width << " x " << height;
            for (const uint8_t p : want.pixels) clamped += p == 0 || p == 255;

            RgbImage tall(width, out), same(width, out);
            taps = any_taps(height, out, random);
            plain_resample.rows(in, taps, tall);
            fast->rows(in, taps, same);
            ASSERT_EQ(same.pixels, tall.pixels) << "rows of " << width << " x " << height;
        }
    }
    EXPECT_GT(clamped, 0);
}

}  // namespace
}  // namespace deepinfer
