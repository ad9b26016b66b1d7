// WebP through libwebp; an animation's first frame through libwebpdemux.
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "vision/image_decode.h"

namespace deepinfer {
namespace {

Status bad(const char* what) {
    return Status(StatusCode::kInvalidArgument, std::string("WebP: ") + what);
}

struct FreeAnimation {
    void operator()(WebPAnimDecoder* d) const { WebPAnimDecoderDelete(d); }
};

void put_rows(const uint8_t* rgba, ImageAlpha alpha, RgbImage* out) {
    const int64_t n = out->width * out->height;
    for (int64_t i = 0; i < n; ++i) put_pixel(rgba + 4 * i, alpha, out->pixels.data() + 3 * i);
}

}  // namespace

Result<RgbImage> decode_webp(std::string_view bytes, ImageSize size, ImageAlpha alpha) {
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(data, bytes.size(), &features) != VP8_STATUS_OK)
        return bad("the header is broken or cut off");
    if (features.width != size.width || features.height != size.height)
        return bad("another size than the header's");
    RgbImage out(size.width, size.height);
    if (features.has_animation != 0) {
        WebPAnimDecoderOptions options;
        if (WebPAnimDecoderOptionsInit(&options) == 0) return bad("library versions differ");
        const WebPData all{data, bytes.size()};
        const std::unique_ptr<WebPAnimDecoder, FreeAnimation> decoder(
            WebPAnimDecoderNew(&all, &options));
        uint8_t* frame = nullptr;
        int time = 0;
        if (decoder == nullptr || WebPAnimDecoderGetNext(decoder.get(), &frame, &time) == 0)
            return bad("the first frame is broken or cut off");
        put_rows(frame, alpha, &out);
        return out;
    }
    if (features.has_alpha == 0) {
        if (WebPDecodeRGBInto(data,
                              bytes.size(),
                              out.pixels.data(),
                              out.pixels.size(),
                              static_cast<int>(3 * size.width)) == nullptr)
            return bad("the picture is broken or cut off");
        return out;
    }
    std::vector<uint8_t> rgba(static_cast<size_t>(size.width * size.height * 4));
    if (WebPDecodeRGBAInto(
            data, bytes.size(), rgba.data(), rgba.size(), static_cast<int>(4 * size.width)) ==
        nullptr)
        return bad("the picture is broken or cut off");
    put_rows(rgba.data(), alpha, &out);
    return out;
}

}  // namespace deepinfer
