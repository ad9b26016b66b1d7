// Doors: files, data URLs and conversations to ImageInput.
#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "deepinfer/image.h"
#include "deepinfer/recipe.h"

namespace deepinfer {
namespace {

Status bad(const std::string& what) {
    return Status(StatusCode::kInvalidArgument, what);
}

constexpr std::array<int8_t, 256> make_base64_values() {
    std::array<int8_t, 256> t{};
    for (auto& v : t) v = -1;
    constexpr std::string_view alphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < alphabet.size(); ++i)
        t[static_cast<uint8_t>(alphabet[i])] = static_cast<int8_t>(i);
    return t;
}
constexpr std::array<int8_t, 256> kBase64 = make_base64_values();

/// Standard alphabet; line breaks are passed over, padding may be left out.
Result<std::string> decode_base64(std::string_view text) {
    std::string out;
    out.reserve(text.size() / 4 * 3 + 3);
    uint32_t bits = 0;
    int count = 0;
    size_t padding = 0;
    for (const char c : text) {
        if (c == '\r' || c == '\n') continue;
        if (c == '=') {
            ++padding;
            continue;
        }
        const int v = kBase64[static_cast<uint8_t>(c)];
        if (v < 0 || padding > 0) return bad("the picture's data is not base64");
        bits = bits << 6 | static_cast<uint32_t>(v);
        if (++count == 4) {
            out.push_back(static_cast<char>(bits >> 16));
            out.push_back(static_cast<char>(bits >> 8));
            out.push_back(static_cast<char>(bits));
            bits = 0;
            count = 0;
        }
    }
    const bool fits = padding == 0 ? count != 1 : static_cast<size_t>(count) + padding == 4;
    if (!fits || padding > 2) return bad("the picture's base64 data is cut off");
    if (count >= 2) out.push_back(static_cast<char>(bits >> (count == 2 ? 4 : 10)));
    if (count == 3) out.push_back(static_cast<char>(bits >> 2));
    return out;
}

}  // namespace

Result<ImageInput> read_image_file(const std::string& path, const ImageLimits& limits) {
    struct CloseFile {
        void operator()(std::FILE* f) const { std::fclose(f); }
    };
    const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
    if (file == nullptr) return Status(StatusCode::kNotFound, path + ": cannot be opened");
    ImageInput input;
    const auto limit = static_cast<size_t>(limits.max_image_bytes);
    std::string block(size_t{1} << 16, '\0');
    for (;;) {
        const size_t n = std::fread(block.data(), 1, block.size(), file.get());
        if (n == 0) break;
        input.encoded.append(block, 0, n);
        if (input.encoded.size() > limit) {
            return Status(StatusCode::kOutOfRange,
                          path + " has more than the " + std::to_string(limit) +
                              " bytes that a picture may have");
        }
    }
    if (std::ferror(file.get()) != 0)
        return Status(StatusCode::kNotFound, path + ": cannot be read");
    const Status s = check_image_format(input.encoded);
    if (!s.ok()) return Status(s.code(), path + ": " + s.message());
    return input;
}

Result<ImageInput> image_from_url(std::string_view url, ImageDetail detail) {
    if (url.starts_with("http://") || url.starts_with("https://")) {
        return Status(StatusCode::kUnimplemented,
                      "pictures are not fetched from URLs; send the picture as a data: URL");
    }
    const size_t comma = url.find(',');
    if (!url.starts_with("data:") || comma == std::string_view::npos)
        return bad("the picture's URL is no data: URL");
    if (!url.substr(0, comma).ends_with(";base64"))
        return bad("the picture's data: URL is not in base64");
    Result<std::string> bytes = decode_base64(url.substr(comma + 1));
    if (!bytes.ok()) return bytes.status();
    ImageInput input;
    input.encoded = std::move(bytes).value();
    input.detail = detail;
    DI_RETURN_IF_ERROR(check_image_format(input.encoded));
    return input;
}

Result<ImageDetail> parse_image_detail(std::string_view word) {
    if (word.empty() || word == "high" || word == "original" || word == "auto")
        return ImageDetail::kHigh;
    if (word == "low") return ImageDetail::kLow;
    return bad("image detail is '" + std::string(word.substr(0, 60)) +
               "', expected low, high, original or auto");
}

Result<std::vector<ImageInput>> images_of(const std::vector<const recipe::ImageSource*>& sources) {
    std::vector<ImageInput> images;
    for (const recipe::ImageSource* source : sources) {
        const Result<ImageDetail> detail = parse_image_detail(source->detail);
        if (!detail.ok()) return detail.status();
        Result<ImageInput> image = image_from_url(source->url, detail.value());
        if (!image.ok()) return image.status();
        images.push_back(std::move(image).value());
    }
    return images;
}

}  // namespace deepinfer
