// Pictures of a request: what callers hand over, and what can be known from a header alone.
//
//   Result<ImageInput> picture = read_image_file("cat.png");
//   request.images.push_back(std::move(picture).value());      // one per placeholder of the prompt
//
// Formats are JPEG, PNG, GIF (first frame) and WebP, told apart by their content, never by a name
// or a declared type. EXIF orientation is not applied (neither does the model's own preprocessing).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

namespace recipe {
struct ImageSource;
}

/// How much of a picture is shown to the model.
enum class ImageDetail {
    kHigh,  ///< as it is; "high", "original" and "auto" in requests
    kLow,   ///< shrunk first, so that its long side has at most 512 pixels
};

/// What becomes of transparency.
enum class ImageAlpha {
    kBlend,  ///< laid on #FDFDFD, as production does
    kDrop,   ///< ignored, as the released reference does
};

/// One picture: the bytes of a file, or pixels that the caller has decoded.
struct ImageInput {
    std::string encoded;            ///< JPEG, PNG, GIF or WebP; empty: rgb is used
    int64_t width = 0, height = 0;  ///< of rgb
    std::vector<uint8_t> rgb;       ///< [height, width, 3]
    ImageDetail detail = ImageDetail::kHigh;
    ImageAlpha alpha = ImageAlpha::kBlend;
};

/// Bounds of what is taken; each is refused by name with both numbers.
struct ImageLimits {
    int64_t max_images = 600;                       ///< of one request
    int64_t max_image_bytes = int64_t{32} << 20;    ///< one picture as encoded
    int64_t max_request_bytes = int64_t{64} << 20;  ///< all pictures of a request as encoded
    int64_t max_side = 8192;                        ///< pixels
    int64_t max_side_of_many = 4096;                ///< in requests with `many` pictures or more
    int64_t many = 15;
};

/// kInvalidArgument for anything that is no picture of a known format, zero bytes included.
Status check_image_format(std::string_view bytes);

/// The file's bytes, checked for their format and size. kNotFound, kInvalidArgument,
/// kOutOfRange.
Result<ImageInput> read_image_file(const std::string& path, const ImageLimits& limits = {});

/// From "data:image/png;base64,…". http and https URLs are refused (kUnimplemented): fetching is
/// not part of this version. kInvalidArgument: not a data URL, or not base64.
Result<ImageInput> image_from_url(std::string_view url, ImageDetail detail = ImageDetail::kHigh);

/// "low" | "high" | "original" | "auto" | "" (= high). kInvalidArgument for other words.
Result<ImageDetail> parse_image_detail(std::string_view word);

/// The pictures of a conversation: images_of(recipe::prompt_images(conversation)).
Result<std::vector<ImageInput>> images_of(const std::vector<const recipe::ImageSource*>& sources);

}  // namespace deepinfer
