// Fuzz target: the bytes of a picture. A picture that decodes has the size of its header, and its
// patches are complete.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "vision/image_preprocess.h"

namespace {

void require(bool ok) {
    if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    constexpr int64_t kMaxSide = 256;  // larger ones only cost time here
    deepinfer::ImageInput input;
    input.encoded.assign(reinterpret_cast<const char*>(data), size);
    input.alpha = size % 2 == 0 ? deepinfer::ImageAlpha::kBlend : deepinfer::ImageAlpha::kDrop;
    const auto image = deepinfer::decode_image(input.encoded, input.alpha, kMaxSide);
    if (!image.ok()) {
        require(!image.status().message().empty());
        return 0;
    }
    const auto header = deepinfer::probe_image_size(input.encoded);
    require(header.ok() && header->width == image->width && header->height == image->height);
    require(static_cast<int64_t>(image->pixels.size()) == image->width * image->height * 3);
    deepinfer::VisionConfig config;
    config.patch_size = 2;
    config.downsample_ratio = 3;
    config.max_image_tokens = 64;
    const auto prepared = deepinfer::preprocess_image(input, config, kMaxSide);
    require(prepared.ok());
    require(static_cast<int64_t>(prepared->patches.size()) == prepared->plan.num_patches() * 12);
    return 0;
}
