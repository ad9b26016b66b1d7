// Decoding: bytes of a picture to 8-bit RGB. The bytes are hostile until proven otherwise.
//
// The size comes from the header, before anything is allocated; a decoder that finds another size
// refuses. Truncated files are refused, never shown half.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "deepinfer/image.h"
#include "deepinfer/status.h"
#include "vision/image_plan.h"

namespace deepinfer {

struct RgbImage {
    int64_t width = 0, height = 0;
    std::vector<uint8_t> pixels;  ///< [height, width, 3]

    RgbImage() = default;
    RgbImage(int64_t w, int64_t h) : width(w), height(h), pixels(static_cast<size_t>(w * h * 3)) {}
    uint8_t* row(int64_t y) { return pixels.data() + y * width * 3; }
    const uint8_t* row(int64_t y) const { return pixels.data() + y * width * 3; }
};

enum class ImageFormat { kUnknown, kJpeg, kPng, kGif, kWebp };

/// By the first bytes.
ImageFormat image_format(std::string_view bytes);
const char* image_format_name(ImageFormat format);

/// Width and height from the header alone. kInvalidArgument: no known format, or a broken header.
Result<ImageSize> probe_image_size(std::string_view bytes);

/// Refuses sides outside [1, max_side] with both numbers.
Status check_image_side(ImageSize size, int64_t max_side);

/// The whole picture; the first frame of an animation. `max_side` is checked before anything is
/// allocated. Grey and palettes are expanded, CMYK is converted naively, 16-bit channels become
/// (v + 128) / 257, alpha follows `alpha`, EXIF orientation is not applied.
Result<RgbImage> decode_image(std::string_view bytes, ImageAlpha alpha, int64_t max_side);

// One decoder each; `size` is what the header said.
Result<RgbImage> decode_jpeg(std::string_view bytes, ImageSize size);
Result<RgbImage> decode_png(std::string_view bytes, ImageSize size, ImageAlpha alpha);
Result<RgbImage> decode_gif(std::string_view bytes, ImageSize size, ImageAlpha alpha);
Result<RgbImage> decode_webp(std::string_view bytes, ImageSize size, ImageAlpha alpha);

/// One pixel of RGBA as RGB.
inline void put_pixel(const uint8_t* rgba, ImageAlpha alpha, uint8_t* rgb) {
    constexpr int kGround = 253;  // #FDFDFD
    for (int c = 0; c < 3; ++c) {
        const int a = alpha == ImageAlpha::kDrop ? 255 : rgba[3];
        rgb[c] = static_cast<uint8_t>((rgba[c] * a + kGround * (255 - a) + 127) / 255);
    }
}

}  // namespace deepinfer
