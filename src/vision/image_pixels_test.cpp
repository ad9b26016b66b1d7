// Pixels against Pillow: decoders, filters, patches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "ops/vision/patch_values.h"
#include "support/golden_file.h"
#include "vision/image_preprocess.h"
#include "vision/image_resize.h"

namespace deepinfer::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kMaxSide = 8192;

std::string read_bytes(const std::string& relative) {
    std::ifstream f(data_path(relative), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(f), {});
}
json read_json(const std::string& relative) {
    return json::parse(read_bytes(relative));
}

std::string fnv(const uint8_t* data, size_t n) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; ++i) h = (h ^ data[i]) * 0x100000001b3ull;
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
    return text;
}
std::string fnv(const RgbImage& image) {
    return fnv(image.pixels.data(), image.pixels.size());
}

template <typename F>
RgbImage painted(int64_t w, int64_t h, F color) {
    RgbImage image(w, h);
    for (int64_t y = 0; y < h; ++y) {
        for (int64_t x = 0; x < w; ++x) {
            for (int64_t c = 0; c < 3; ++c)
                image.row(y)[3 * x + c] = static_cast<uint8_t>(color(x, y, c));
        }
    }
    return image;
}

std::vector<std::vector<int>> channel_0(const RgbImage& image) {
    std::vector<std::vector<int>> rows;
    for (int64_t y = 0; y < image.height; ++y) {
        rows.emplace_back();
        for (int64_t x = 0; x < image.width; ++x) rows.back().push_back(image.row(y)[3 * x]);
    }
    return rows;
}

TEST(DecodeImage, EqualsPillowOnEveryFormat) {
    const json cases = read_json("pictures/cases.json")["decode"];
    ASSERT_GE(cases.size(), 20u);
    for (const json& c : cases) {
        const std::string name = c["file"], bytes = read_bytes("pictures/" + name);
        const Result<ImageSize> size = probe_image_size(bytes);
        ASSERT_TRUE(size.ok()) << name << ": " << size.status().message();
        EXPECT_EQ(size.value(), (ImageSize{c["width"], c["height"]})) << name;
        for (const char* mode : {"drop", "blend"}) {
            const bool drop = std::string(mode) == "drop";
            const Result<RgbImage> image =
                decode_image(bytes, drop ? ImageAlpha::kDrop : ImageAlpha::kBlend, kMaxSide);
            ASSERT_TRUE(image.ok()) << name << ": " << image.status().message();
            EXPECT_EQ(fnv(image.value()), c[mode].get<std::string>()) << name << " " << mode;
        }
    }
}

TEST(DecodeImage, EveryTruncationIsRefusedOrWhole) {
    for (const char* name : {"rgba.png",
                             "wide.png",
                             "photo_420.jpg",
                             "progressive.jpg",
                             "cmyk.jpg",
                             "clear.gif",
                             "moving.gif",
                             "lossy.webp",
                             "lossless_clear.webp",
                             "moving.webp"}) {
        const std::string bytes = read_bytes(std::string("pictures/") + name);
        const Result<RgbImage> whole = decode_image(bytes, ImageAlpha::kBlend, kMaxSide);
        ASSERT_TRUE(whole.ok()) << name;
        for (size_t n = 0; n < bytes.size(); ++n) {
            // Nothing is shown half: trailers may be missing, picture data may not.
            const Result<RgbImage> part =
                decode_image(std::string_view(bytes).substr(0, n), ImageAlpha::kBlend, kMaxSide);
            if (!part.ok()) continue;
            EXPECT_EQ(fnv(part.value()), fnv(whole.value())) << name << " at " << n;
        }
    }
}

TEST(DecodeImage, DeclaredSizesAreRefusedBeforeAnythingIsAllocated) {
    std::string png = read_bytes("pictures/rgb.png");
    png.replace(16, 8, std::string("\x7F\xFF\xFF\xFF\x7F\xFF\xFF\xFF", 8));
    std::string gif = read_bytes("pictures/photo.gif");
    gif.replace(6, 4, std::string("\xFF\xFF\xFF\xFF", 4));
    for (const std::string& bytes : {png, gif}) {
        const Result<RgbImage> r = decode_image(bytes, ImageAlpha::kBlend, kMaxSide);
        ASSERT_FALSE(r.ok());
        EXPECT_EQ(r.status().code(), StatusCode::kOutOfRange);
        EXPECT_THAT(r.status().message(), HasSubstr("at most 8192"));
    }
    // The bound itself: 37 x 29 pixels.
    const std::string jpg = read_bytes("pictures/photo_420.jpg");
    EXPECT_TRUE(decode_image(jpg, ImageAlpha::kBlend, 37).ok());
    EXPECT_FALSE(decode_image(jpg, ImageAlpha::kBlend, 36).ok());
    std::string zero = read_bytes("pictures/rgb.png");
    zero.replace(16, 4, std::string(4, '\0'));
    EXPECT_FALSE(decode_image(zero, ImageAlpha::kBlend, kMaxSide).ok());
}

TEST(DecodeImage, UnknownAndEmptyBytesAreNamed) {
    EXPECT_THAT(check_image_format("").message(), HasSubstr("no bytes"));
    for (const char* bytes : {"BM123456789012345", "II*\0xxxxxxxx", "<svg/>", "GIF88a", "\xFF\xD8"})
        EXPECT_THAT(check_image_format(bytes).message(), HasSubstr("unsupported media type"));
    EXPECT_TRUE(check_image_format(read_bytes("pictures/lossy.webp")).ok());
}

TEST(DecodeImage, ChangedBytesNeverCrash) {
    for (const char* name : {"palette_clear.png",
                             "photo_420.jpg",
                             "progressive.jpg",
                             "clear.gif",
                             "lossy.webp",
                             "lossless_clear.webp"}) {
        const std::string bytes = read_bytes(std::string("pictures/") + name);
        uint32_t state = 1;
        for (int i = 0; i < 300; ++i) {
            std::string broken = bytes;
            for (int k = 0; k < 3; ++k) {
                state = state * 1664525u + 1013904223u;
                broken[state % broken.size()] = static_cast<char>(state >> 24);
            }
            const Result<RgbImage> r = decode_image(broken, ImageAlpha::kBlend, 256);
            if (r.ok()) {
                ASSERT_LE(r->width, 256);
            } else {
                ASSERT_NE(r.status().message(), "");
            }
        }
    }
}

TEST(ResizeBicubic, EqualsPillowInBothOrdersOfPasses) {
    const Result<RgbImage> noise =
        decode_image(read_bytes("pictures/noise.png"), ImageAlpha::kDrop, kMaxSide);
    ASSERT_TRUE(noise.ok());
    const json cases = read_json("pictures/cases.json");
    for (const json& c : cases["resize_noise_png"]) {
        EXPECT_EQ(fnv(resize_bicubic(noise.value(), {c["to"][0], c["to"][1]})),
                  c["fnv"].get<std::string>())
            << c["to"];
    }
}

TEST(ResizeBicubic, EqualsTheHandedCases) {
    const RgbImage squares =
        painted(8, 8, [](int64_t x, int64_t y, int64_t) { return (7 * x * x + 13 * y) % 256; });
    const RgbImage checks = painted(
        12, 9, [](int64_t x, int64_t y, int64_t) { return (x / 2 + y) % 2 == 1 ? 255 : 0; });
    const RgbImage ramp =
        painted(4, 2, [](int64_t x, int64_t y, int64_t) { return 60 * x + 20 * y; });
    int seen = 0;
    for (const json& c : read_json("cases/vision.json")) {
        if (c["id"] != "C-082") continue;
        for (const json& row : c["rows"]) {
            const json &in = row["in"], &want = row["want"];
            const std::string picture = in.value("picture", "");
            if (in.contains("fit_into")) {
                ImagePlan plan;
                plan.target = {in["fit_into"][0], in["fit_into"][1]};
                EXPECT_EQ(json(channel_0(fit_and_pad(ramp, plan))), want["pixels"]);
                ++seen;
            } else if (in.contains("to")) {
                const bool is_checks = picture.rfind("12x9", 0) == 0;
                const auto got = channel_0(
                    resize_bicubic(is_checks ? checks : squares, {in["to"][0], in["to"][1]}));
                if (want.contains("pixels")) {
                    EXPECT_EQ(json(got), want["pixels"]);
                }
                if (want.contains("row_0")) {
                    EXPECT_EQ(json(got[0]), want["row_0"]);
                }
                if (want.contains("row_6")) {
                    EXPECT_EQ(json(got[6]), want["row_6"]);
                }
                ++seen;
            }
        }
    }
    EXPECT_EQ(seen, 4);
}

TEST(Patches, EqualThePublishedFingerprints) {
    VisionConfig config;
    config.patch_size = 14;
    config.downsample_ratio = 3;
    config.max_image_tokens = 1024;
    config.min_pixels = 295936;
    int seen = 0;
    for (const json& c : read_json("cases/vision.json")) {
        if (c["id"] != "C-078") continue;
        for (const json& row : c["rows"]) {
            if (!row["want"].contains("fnv1a64_of_f32le_patches")) continue;
            const int64_t s = row["in"]["s"];
            const RgbImage image = painted(
                row["in"]["size"][0], row["in"]["size"][1], [s](int64_t x, int64_t y, int64_t ch) {
                    const int64_t v = ch == 0   ? 7 * x + 3 * y
                                      : ch == 1 ? 5 * x + 11 * y
                                                : x + 2 * y;
                    return (v + s) % 256;
                });
            ImageInput input;
            input.width = image.width;
            input.height = image.height;
            input.rgb = image.pixels;
            const Result<PreparedImage> p = preprocess_image(input, config, kMaxSide);
            ASSERT_TRUE(p.ok());
            std::vector<float> values;
            for (const uint8_t u : p->patches)
                values.push_back((static_cast<float>(u) / 255.0f - 0.5f) / 0.5f);
            EXPECT_EQ(fnv(reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4),
                      row["want"]["fnv1a64_of_f32le_patches"].get<std::string>());
            ++seen;
        }
    }
    EXPECT_EQ(seen, 2);
}

TEST(Patches, ValuesOfTheSpec) {
    const auto t = patch_values();
    const std::vector<std::pair<int, uint16_t>> want = {{0, 0xBF80},
                                                        {1, 0xBF7E},
                                                        {64, 0xBEFF},
                                                        {127, 0xBB81},
                                                        {128, 0x3B81},
                                                        {200, 0x3F12},
                                                        {253, 0x3F7C},
                                                        {255, 0x3F80}};
    for (const auto& [u, bits] : want) EXPECT_EQ(t[static_cast<size_t>(u)].bits, bits) << u;
}

TEST(Patches, ChannelThenRowThenColumn) {
    const RgbImage image =
        painted(6, 6, [](int64_t x, int64_t y, int64_t c) { return 100 * c + 6 * y + x; });
    VisionConfig config;
    config.patch_size = 2;
    config.downsample_ratio = 3;
    config.max_image_tokens = 1024;
    const std::vector<uint8_t> p = cut_patches(image, plan_image({6, 6}, config), 2);
    ASSERT_EQ(p.size(), 9u * 12u);
    const std::vector<uint8_t> first(p.begin(), p.begin() + 12),
        second(p.begin() + 12, p.begin() + 24);
    EXPECT_EQ(first, (std::vector<uint8_t>{0, 1, 6, 7, 100, 101, 106, 107, 200, 201, 206, 207}));
    EXPECT_EQ(second[0], 2);
}

TEST(Preprocess, DigestIsThePictureNotTheFile) {
    VisionConfig config;
    config.patch_size = 14;
    config.downsample_ratio = 3;
    config.max_image_tokens = 16;
    config.min_pixels = 7056;
    const auto digest = [&](const char* name) {
        ImageInput input;
        input.encoded = read_bytes(std::string("pictures/") + name);
        return preprocess_image(input, config, kMaxSide)->digest;
    };
    EXPECT_EQ(digest("rgb.png"), digest("lossless.webp"));
    EXPECT_NE(digest("rgb.png"), digest("grey.png"));
    const ImageDigest before = digest("rgb.png");
    config.max_image_tokens = 15;
    EXPECT_NE(before, digest("rgb.png")) << "planning is part of the identity";
}

TEST(Preprocess, AHeaderThatLiesIsRefused) {
    VisionConfig config;
    config.patch_size = 14;
    config.downsample_ratio = 3;
    config.max_image_tokens = 16;
    ImageInput input;
    input.encoded = read_bytes("pictures/rgb.png");
    ImagePlan other = plan_image({100, 10}, config);
    std::vector<uint8_t> out(static_cast<size_t>(other.num_patches() * 3 * 14 * 14));
    EXPECT_THAT(preprocess_into(input, other, config, kMaxSide, out.data()).message(),
                HasSubstr("another size than its header"));
}

TEST(ImageDoors, DataUrls) {
    const Result<ImageInput> gif = image_from_url("data:image/png;base64,R0lGODlhAQABAAAAACw=");
    ASSERT_TRUE(gif.ok()) << gif.status().message();  // by content, whatever was declared
    EXPECT_EQ(gif->encoded.size(), 14u);
    EXPECT_EQ(gif->encoded.substr(0, 6), "GIF89a");
    EXPECT_EQ(image_from_url("https://example.com/a.png").status().code(),
              StatusCode::kUnimplemented);
    for (const char* url : {"data:image/png,R0lG",
                            "file:///etc/passwd",
                            "data:image/png;base64",
                            "data:image/png;base64,R0lGODlhAQABAAAAA",
                            "data:image/png;base64,R0lG*DlhAQABAAAAACw=",
                            "data:image/png;base64,AAAA"})
        EXPECT_EQ(image_from_url(url).status().code(), StatusCode::kInvalidArgument) << url;
    EXPECT_TRUE(parse_image_detail("original").ok());
    EXPECT_EQ(parse_image_detail("low").value(), ImageDetail::kLow);
    EXPECT_FALSE(parse_image_detail("tiny").ok());
}

TEST(ImageDoors, FilesAtAndOverTheLimit) {
    const std::string path = data_path("pictures/rgb.png");
    ImageLimits limits;
    limits.max_image_bytes = static_cast<int64_t>(read_bytes("pictures/rgb.png").size());
    EXPECT_TRUE(read_image_file(path, limits).ok());
    limits.max_image_bytes -= 1;
    EXPECT_EQ(read_image_file(path, limits).status().code(), StatusCode::kOutOfRange);
    EXPECT_EQ(read_image_file(path + ".no").status().code(), StatusCode::kNotFound);
    EXPECT_THAT(read_image_file(data_path("pictures/cases.json")).status().message(),
                HasSubstr("cases.json: unsupported media type"));
}

}  // namespace
}  // namespace deepinfer::testing
