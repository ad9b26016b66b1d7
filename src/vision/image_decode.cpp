#include "vision/image_decode.h"

#include <webp/decode.h>

#include <string>

namespace deepinfer {
namespace {

Status bad(const std::string& what) {
    return Status(StatusCode::kInvalidArgument, what);
}

uint32_t byte_at(std::string_view b, size_t i) {
    return static_cast<uint8_t>(b[i]);
}
uint32_t big16(std::string_view b, size_t i) {
    return byte_at(b, i) << 8 | byte_at(b, i + 1);
}
uint32_t big32(std::string_view b, size_t i) {
    return big16(b, i) << 16 | big16(b, i + 2);
}
uint32_t little16(std::string_view b, size_t i) {
    return byte_at(b, i) | byte_at(b, i + 1) << 8;
}

/// Walks the markers to the frame header.
Result<ImageSize> probe_jpeg(std::string_view b) {
    size_t i = 2;
    while (i + 4 <= b.size()) {
        if (byte_at(b, i) != 0xFF) return bad("JPEG: no marker where one is expected");
        const uint32_t marker = byte_at(b, i + 1);
        if (marker == 0xFF) {  // fill bytes
            ++i;
            continue;
        }
        if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) {
            i += 2;
            continue;
        }
        if (marker == 0xD8 || marker == 0xD9 || marker == 0xDA)
            return bad("JPEG: no frame header before the picture data");
        const uint32_t length = big16(b, i + 2);
        if (length < 2) return bad("JPEG: a segment of " + std::to_string(length) + " bytes");
        // SOF0..SOF15 without DHT, JPG and DAC.
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 &&
            marker != 0xCC) {
            if (i + 9 > b.size()) break;
            return ImageSize{big16(b, i + 7), big16(b, i + 5)};
        }
        i += 2 + length;
    }
    return bad("JPEG: the file ends before its frame header");
}

Result<ImageSize> probe_png(std::string_view b) {
    if (b.size() < 33) return bad("PNG: the file ends inside its header");
    if (b.substr(12, 4) != "IHDR" || big32(b, 8) != 13)
        return bad("PNG: the first chunk is no IHDR");
    return ImageSize{big32(b, 16), big32(b, 20)};
}

Result<ImageSize> probe_gif(std::string_view b) {
    if (b.size() < 13) return bad("GIF: the file ends inside its header");
    return ImageSize{little16(b, 6), little16(b, 8)};
}

Result<ImageSize> probe_webp(std::string_view b) {
    int w = 0, h = 0;
    if (WebPGetInfo(reinterpret_cast<const uint8_t*>(b.data()), b.size(), &w, &h) == 0)
        return bad("WebP: the header is broken or cut off");
    return ImageSize{w, h};
}

}  // namespace

ImageFormat image_format(std::string_view b) {
    using namespace std::string_view_literals;
    if (b.starts_with("\x89PNG\r\n\x1A\n"sv)) return ImageFormat::kPng;
    if (b.starts_with("\xFF\xD8\xFF"sv)) return ImageFormat::kJpeg;
    if (b.starts_with("GIF87a"sv) || b.starts_with("GIF89a"sv)) return ImageFormat::kGif;
    if (b.size() >= 12 && b.starts_with("RIFF"sv) && b.substr(8, 4) == "WEBP"sv)
        return ImageFormat::kWebp;
    return ImageFormat::kUnknown;
}

const char* image_format_name(ImageFormat format) {
    switch (format) {
        case ImageFormat::kJpeg:
            return "JPEG";
        case ImageFormat::kPng:
            return "PNG";
        case ImageFormat::kGif:
            return "GIF";
        case ImageFormat::kWebp:
            return "WebP";
        case ImageFormat::kUnknown:
            break;
    }
    return "unknown";
}

Status check_image_format(std::string_view bytes) {
    if (bytes.empty()) return bad("the picture has no bytes");
    if (image_format(bytes) == ImageFormat::kUnknown)
        return bad("unsupported media type: the picture is none of JPEG, PNG, GIF and WebP");
    return {};
}

Result<ImageSize> probe_image_size(std::string_view bytes) {
    DI_RETURN_IF_ERROR(check_image_format(bytes));
    switch (image_format(bytes)) {
        case ImageFormat::kJpeg:
            return probe_jpeg(bytes);
        case ImageFormat::kPng:
            return probe_png(bytes);
        case ImageFormat::kGif:
            return probe_gif(bytes);
        default:
            return probe_webp(bytes);
    }
}

Status check_image_side(ImageSize size, int64_t max_side) {
    const std::string shape = std::to_string(size.width) + " x " + std::to_string(size.height);
    if (size.width < 1 || size.height < 1) return bad("the picture is " + shape + " pixels");
    if (size.width > max_side || size.height > max_side) {
        return Status(StatusCode::kOutOfRange,
                      "the picture is " + shape + " pixels, at most " + std::to_string(max_side) +
                          " a side are taken");
    }
    return {};
}

Result<RgbImage> decode_image(std::string_view bytes, ImageAlpha alpha, int64_t max_side) {
    const Result<ImageSize> size = probe_image_size(bytes);
    if (!size.ok()) return size.status();
    DI_RETURN_IF_ERROR(check_image_side(size.value(), max_side));
    switch (image_format(bytes)) {
        case ImageFormat::kJpeg:
            return decode_jpeg(bytes, size.value());
        case ImageFormat::kPng:
            return decode_png(bytes, size.value(), alpha);
        case ImageFormat::kGif:
            return decode_gif(bytes, size.value(), alpha);
        default:
            return decode_webp(bytes, size.value(), alpha);
    }
}

}  // namespace deepinfer
