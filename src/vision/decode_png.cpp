// PNG through libspng, which was written for hostile files.
#include <spng.h>

#include <memory>
#include <string>

#include "vision/image_decode.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxChunkBytes = size_t{64} << 20;  // ancillary chunks: profiles, texts

struct FreeContext {
    void operator()(spng_ctx* c) const { spng_ctx_free(c); }
};

Status bad(int error) {
    return Status(StatusCode::kInvalidArgument, std::string("PNG: ") + spng_strerror(error));
}

/// One row of RGBA, 8 or 16 bits a channel, as RGB.
void put_row(const uint8_t* row, bool wide, int64_t n, ImageAlpha alpha, uint8_t* out) {
    for (int64_t x = 0; x < n; ++x) {
        uint8_t rgba[4];
        for (int c = 0; c < 4; ++c) {
            if (wide) {
                uint16_t v;
                __builtin_memcpy(&v, row + (4 * x + c) * 2, 2);
                rgba[c] = static_cast<uint8_t>((v + 128) / 257);
            } else {
                rgba[c] = row[4 * x + c];
            }
        }
        put_pixel(rgba, alpha, out + 3 * x);
    }
}

}  // namespace

Result<RgbImage> decode_png(std::string_view bytes, ImageSize size, ImageAlpha alpha) {
    const std::unique_ptr<spng_ctx, FreeContext> context(spng_ctx_new(0));
    spng_ctx* c = context.get();
    if (c == nullptr) return Status(StatusCode::kResourceExhausted, "PNG: no memory");
    spng_set_crc_action(c, SPNG_CRC_ERROR, SPNG_CRC_DISCARD);
    spng_set_chunk_limits(c, kMaxChunkBytes, kMaxChunkBytes);
    spng_set_image_limits(c, static_cast<uint32_t>(size.width), static_cast<uint32_t>(size.height));
    if (int e = spng_set_png_buffer(c, bytes.data(), bytes.size()); e != 0) return bad(e);
    spng_ihdr header;
    if (int e = spng_get_ihdr(c, &header); e != 0) return bad(e);
    if (header.width != size.width || header.height != size.height)
        return Status(StatusCode::kInvalidArgument, "PNG: another size than the header's");

    const bool wide = header.bit_depth == 16;
    const int format = wide ? SPNG_FMT_RGBA16 : SPNG_FMT_RGBA8;
    const size_t row_bytes = static_cast<size_t>(size.width) * (wide ? 8 : 4);
    RgbImage out(size.width, size.height);
    if (header.interlace_method != 0) {
        std::vector<uint8_t> all(row_bytes * static_cast<size_t>(size.height));
        if (int e = spng_decode_image(c, all.data(), all.size(), format, SPNG_DECODE_TRNS); e != 0)
            return bad(e);
        for (int64_t y = 0; y < size.height; ++y)
            put_row(all.data() + static_cast<size_t>(y) * row_bytes,
                    wide,
                    size.width,
                    alpha,
                    out.row(y));
        return out;
    }
    const int flags = SPNG_DECODE_TRNS | SPNG_DECODE_PROGRESSIVE;
    if (int e = spng_decode_image(c, nullptr, 0, format, flags); e != 0) return bad(e);
    std::vector<uint8_t> row(row_bytes);
    for (int64_t y = 0; y < size.height; ++y) {
        const int e = spng_decode_row(c, row.data(), row.size());
        const bool last = y + 1 == size.height;
        if (e != 0 && !(last && e == SPNG_EOI)) return bad(e);
        put_row(row.data(), wide, size.width, alpha, out.row(y));
    }
    return out;
}

}  // namespace deepinfer
