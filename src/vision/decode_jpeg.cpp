// JPEG through libjpeg-turbo with its defaults: accurate integer IDCT, "fancy" chroma upsampling,
// as Pillow has them.
#include <csetjmp>
#include <cstdio>
#include <string>

// jpeglib.h needs what stands above, jerror.h needs jpeglib.h.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "vision/image_decode.h"

namespace deepinfer {
namespace {

constexpr int kMaxScans = 200;  // progressive files: time grows with scans, not with bytes

struct Errors {
    jpeg_error_mgr base;
    std::jmp_buf back;
    char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void fail(Errors* e) {
    std::longjmp(e->back, 1);
}
[[noreturn]] void on_error(j_common_ptr info) {
    auto* e = reinterpret_cast<Errors*>(info->err);
    (*info->err->format_message)(info, e->text);
    fail(e);
}
void on_message(j_common_ptr info, int level) {
    // Warnings are tolerated, as everybody does, except the end of the data: that is a picture cut
    // off, whose rest libjpeg would paint grey.
    if (level >= 0 || info->err->msg_code != JWRN_JPEG_EOF) return;
    auto* e = reinterpret_cast<Errors*>(info->err);
    (*info->err->format_message)(info, e->text);
    fail(e);
}
void on_progress(j_common_ptr info) {
    auto* d = reinterpret_cast<j_decompress_ptr>(info);
    if (d->input_scan_number > kMaxScans) {
        auto* e = reinterpret_cast<Errors*>(info->err);
        std::snprintf(e->text, sizeof e->text, "more than %d scans", kMaxScans);
        fail(e);
    }
}

/// Adobe's CMYK is stored inverted; the conversion itself is the naive one of Pillow.
void cmyk_row(const uint8_t* cmyk, int64_t n, uint8_t* rgb) {
    for (int64_t x = 0; x < n; ++x) {
        const int k = cmyk[4 * x + 3];  // inverted: 255 − K
        for (int c = 0; c < 3; ++c) {
            const int t = (255 - cmyk[4 * x + c]) * k + 128;
            const int v = k - (((t >> 8) + t) >> 8);
            rgb[3 * x + c] = static_cast<uint8_t>(v < 0 ? 0 : v);
        }
    }
}

}  // namespace

Result<RgbImage> decode_jpeg(std::string_view bytes, ImageSize size) {
    // Everything with a destructor stands before setjmp: a jump skips no destructor then.
    RgbImage out(size.width, size.height);
    std::vector<uint8_t> line(static_cast<size_t>(size.width) * 4);
    jpeg_decompress_struct d;
    jpeg_progress_mgr progress{};
    Errors errors{};
    d.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = on_error;
    errors.base.emit_message = on_message;
    if (setjmp(errors.back) != 0) {
        jpeg_destroy_decompress(&d);
        return Status(StatusCode::kInvalidArgument, std::string("JPEG: ") + errors.text);
    }
    jpeg_create_decompress(&d);
    progress.progress_monitor = on_progress;
    d.progress = &progress;
    jpeg_mem_src(&d,
                 reinterpret_cast<const unsigned char*>(bytes.data()),
                 static_cast<unsigned long>(bytes.size()));
    jpeg_read_header(&d, TRUE);
    const bool other_size = d.image_width != size.width || d.image_height != size.height;
    const bool cmyk = d.jpeg_color_space == JCS_CMYK || d.jpeg_color_space == JCS_YCCK;
    const bool grey = d.jpeg_color_space == JCS_GRAYSCALE;
    if (other_size || d.data_precision != 8) {
        jpeg_destroy_decompress(&d);
        return Status(StatusCode::kInvalidArgument,
                      other_size ? "JPEG: the frame has another size than the header"
                                 : "JPEG: only 8 bits a sample are supported");
    }
    d.out_color_space = cmyk ? JCS_CMYK : (grey ? JCS_GRAYSCALE : JCS_RGB);
    jpeg_start_decompress(&d);
    while (d.output_scanline < d.output_height) {
        const int64_t y = d.output_scanline;
        JSAMPROW to = cmyk || grey ? line.data() : out.row(y);
        jpeg_read_scanlines(&d, &to, 1);
        if (cmyk) cmyk_row(line.data(), size.width, out.row(y));
        for (int64_t x = 0; grey && x < size.width; ++x)
            for (int c = 0; c < 3; ++c) out.row(y)[3 * x + c] = line[static_cast<size_t>(x)];
    }
    jpeg_destroy_decompress(&d);
    return out;
}

}  // namespace deepinfer
