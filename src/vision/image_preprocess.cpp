#include "vision/image_preprocess.h"

#include <openssl/evp.h>

#include <cstring>
#include <string>

#include "base/check.h"
#include "vision/image_resize.h"

namespace deepinfer {
namespace {

Result<ImageSize> input_size(const ImageInput& input) {
    if (!input.encoded.empty()) return probe_image_size(input.encoded);
    if (input.rgb.empty()) return Status(StatusCode::kInvalidArgument, "the picture has no bytes");
    const ImageSize size{input.width, input.height};
    if (size.width < 1 || size.height < 1 ||
        static_cast<int64_t>(input.rgb.size()) / 3 / size.width != size.height ||
        static_cast<int64_t>(input.rgb.size()) != size.width * size.height * 3) {
        return Status(StatusCode::kInvalidArgument,
                      "rgb has " + std::to_string(input.rgb.size()) + " bytes, expected " +
                          std::to_string(size.width) + " x " + std::to_string(size.height) +
                          " pixels of 3");
    }
    return size;
}

Result<RgbImage> input_pixels(const ImageInput& input, int64_t max_side) {
    if (!input.encoded.empty()) return decode_image(input.encoded, input.alpha, max_side);
    const Result<ImageSize> size = input_size(input);
    if (!size.ok()) return size.status();
    RgbImage image;
    image.width = size->width;
    image.height = size->height;
    image.pixels = input.rgb;
    return image;
}

void cut_into(const RgbImage& image, const ImagePlan& plan, int64_t p, uint8_t* out) {
    DI_CHECK(image.width == plan.target.width && image.height == plan.target.height);
    for (int64_t gy = 0; gy < plan.grid_h; ++gy) {
        for (int64_t gx = 0; gx < plan.grid_w; ++gx) {
            for (int64_t y = 0; y < p; ++y) {
                const uint8_t* src = image.row(gy * p + y) + 3 * gx * p;
                for (int64_t x = 0; x < p; ++x) {
                    for (int64_t c = 0; c < 3; ++c) out[(c * p + y) * p + x] = src[3 * x + c];
                }
            }
            out += 3 * p * p;
        }
    }
}

}  // namespace

Result<ImagePlan> plan_input(const ImageInput& input,
                             const VisionConfig& config,
                             int64_t max_side) {
    const Result<ImageSize> size = input_size(input);
    if (!size.ok()) return size.status();
    DI_RETURN_IF_ERROR(check_image_side(size.value(), max_side));
    return plan_image(size_after_detail(size.value(), input.detail), config);
}

std::vector<uint8_t> cut_patches(const RgbImage& image, const ImagePlan& plan, int64_t p) {
    std::vector<uint8_t> out(static_cast<size_t>(plan.num_patches() * 3 * p * p));
    cut_into(image, plan, p, out.data());
    return out;
}

Status preprocess_into(const ImageInput& input,
                       const ImagePlan& plan,
                       const VisionConfig& config,
                       int64_t max_side,
                       uint8_t* patches) {
    Result<RgbImage> image = input_pixels(input, max_side);
    if (!image.ok()) return image.status();
    const ImageSize size = size_after_detail({image->width, image->height}, input.detail);
    if (!(plan_image(size, config) == plan))
        return Status(StatusCode::kInvalidArgument, "the picture has another size than its header");
    if (size.width != image->width || size.height != image->height)
        image = resize_bicubic(image.value(), size);
    cut_into(fit_and_pad(std::move(image).value(), plan), plan, config.patch_size, patches);
    return {};
}

Result<PreparedImage> preprocess_image(const ImageInput& input,
                                       const VisionConfig& config,
                                       int64_t max_side) {
    const Result<ImagePlan> plan = plan_input(input, config, max_side);
    if (!plan.ok()) return plan.status();
    PreparedImage out;
    out.plan = plan.value();
    out.patches.resize(
        static_cast<size_t>(out.plan.num_patches() * 3 * config.patch_size * config.patch_size));
    DI_RETURN_IF_ERROR(preprocess_into(input, out.plan, config, max_side, out.patches.data()));
    out.digest = image_digest(out.patches, out.plan, config);
    return out;
}

ImageDigest image_digest(const std::vector<uint8_t>& patches,
                         const ImagePlan& plan,
                         const VisionConfig& config) {
    const int64_t facts[] = {plan.target.width,
                             plan.target.height,
                             plan.llm_h,
                             plan.llm_w,
                             config.patch_size,
                             config.downsample_ratio,
                             config.max_image_tokens,
                             config.min_pixels};
    ImageDigest digest;
    EVP_MD_CTX* c = EVP_MD_CTX_new();
    DI_CHECK(c != nullptr && EVP_DigestInit_ex(c, EVP_sha256(), nullptr) == 1);
    DI_CHECK(EVP_DigestUpdate(c, facts, sizeof facts) == 1);
    DI_CHECK(EVP_DigestUpdate(c, &config.max_wh_ratio, sizeof config.max_wh_ratio) == 1);
    DI_CHECK(EVP_DigestUpdate(c, patches.data(), patches.size()) == 1);
    DI_CHECK(EVP_DigestFinal_ex(c, digest.data(), nullptr) == 1);
    EVP_MD_CTX_free(c);
    return digest;
}

}  // namespace deepinfer
