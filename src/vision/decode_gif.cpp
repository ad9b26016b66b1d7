// GIF through giflib: the first frame, laid on the (transparent) screen.
#include <gif_lib.h>

#include <cstring>
#include <memory>
#include <string>

#include "vision/image_decode.h"

namespace deepinfer {
namespace {

struct Source {
    std::string_view bytes;
    size_t at = 0;
};

int read_bytes(GifFileType* file, GifByteType* to, int n) {
    auto* s = static_cast<Source*>(file->UserData);
    const size_t take = std::min(static_cast<size_t>(n), s->bytes.size() - s->at);
    std::memcpy(to, s->bytes.data() + s->at, take);
    s->at += take;
    return static_cast<int>(take);
}

struct Close {
    void operator()(GifFileType* f) const { DGifCloseFile(f, nullptr); }
};

Status bad(const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "GIF: " + what);
}
Status bad(int error) {
    const char* text = GifErrorString(error);
    return bad(text == nullptr ? "broken data" : text);
}

/// Row y of the file's order in an interlaced picture.
int64_t interlaced_row(int64_t i, int64_t height) {
    static constexpr int64_t kStart[] = {0, 4, 2, 1}, kStep[] = {8, 8, 4, 2};
    for (int pass = 0; pass < 4; ++pass) {
        const int64_t rows =
            height > kStart[pass] ? (height - kStart[pass] + kStep[pass] - 1) / kStep[pass] : 0;
        if (i < rows) return kStart[pass] + i * kStep[pass];
        i -= rows;
    }
    return height - 1;
}

/// Skips to the first image; -1 or the transparent palette index of its graphics control block.
Result<int> first_frame(GifFileType* f) {
    int transparent = NO_TRANSPARENT_COLOR;
    for (;;) {
        GifRecordType record = UNDEFINED_RECORD_TYPE;
        if (DGifGetRecordType(f, &record) != GIF_OK) return bad(f->Error);
        if (record == TERMINATE_RECORD_TYPE) return bad("there is no frame");
        if (record == IMAGE_DESC_RECORD_TYPE) {
            if (DGifGetImageDesc(f) != GIF_OK) return bad(f->Error);
            return transparent;
        }
        if (record != EXTENSION_RECORD_TYPE) continue;
        int code = 0;
        GifByteType* block = nullptr;
        if (DGifGetExtension(f, &code, &block) != GIF_OK) return bad(f->Error);
        while (block != nullptr) {
            GraphicsControlBlock control;
            if (code == GRAPHICS_EXT_FUNC_CODE &&
                DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
                transparent = control.TransparentColor;
            if (DGifGetExtensionNext(f, &block) != GIF_OK) return bad(f->Error);
        }
    }
}

}  // namespace

Result<RgbImage> decode_gif(std::string_view bytes, ImageSize size, ImageAlpha alpha) {
    Source source{bytes};
    int error = 0;
    const std::unique_ptr<GifFileType, Close> file(DGifOpen(&source, read_bytes, &error));
    GifFileType* f = file.get();
    if (f == nullptr) return bad(error);
    const Result<int> transparent = first_frame(f);
    if (!transparent.ok()) return transparent.status();
    const GifImageDesc& frame = f->Image;
    if (f->SWidth != size.width || f->SHeight != size.height)
        return bad("another size than the header's");
    if (frame.Left < 0 || frame.Top < 0 || frame.Width < 1 || frame.Height < 1 ||
        frame.Left + frame.Width > size.width || frame.Top + frame.Height > size.height)
        return bad("the first frame does not lie inside the screen");
    const ColorMapObject* colors = frame.ColorMap != nullptr ? frame.ColorMap : f->SColorMap;
    if (colors == nullptr) return bad("there is no palette");

    RgbImage out(size.width, size.height);
    const bool covers = frame.Width == size.width && frame.Height == size.height;
    uint8_t ground[4] = {0, 0, 0, 0};
    if (f->SColorMap != nullptr && f->SBackGroundColor < f->SColorMap->ColorCount) {
        const GifColorType& c = f->SColorMap->Colors[f->SBackGroundColor];
        ground[0] = c.Red, ground[1] = c.Green, ground[2] = c.Blue;
    }
    for (int64_t i = 0; !covers && i < size.width * size.height; ++i)
        put_pixel(ground, alpha, out.pixels.data() + 3 * i);
    std::vector<GifPixelType> line(static_cast<size_t>(frame.Width));
    for (int64_t i = 0; i < frame.Height; ++i) {
        if (DGifGetLine(f, line.data(), frame.Width) != GIF_OK) return bad(f->Error);
        const int64_t y = frame.Interlace ? interlaced_row(i, frame.Height) : i;
        uint8_t* to = out.row(frame.Top + y) + 3 * frame.Left;
        for (int64_t x = 0; x < frame.Width; ++x) {
            const int index = line[static_cast<size_t>(x)];
            if (index >= colors->ColorCount)
                return bad("a pixel names colour " + std::to_string(index) + " of " +
                           std::to_string(colors->ColorCount));
            const GifColorType& c = colors->Colors[index];
            const uint8_t rgba[4] = {c.Red,
                                     c.Green,
                                     c.Blue,
                                     static_cast<uint8_t>(index == transparent.value() ? 0 : 255)};
            put_pixel(rgba, alpha, to + 3 * x);
        }
    }
    return out;
}

}  // namespace deepinfer
