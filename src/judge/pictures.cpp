#include "judge/pictures.h"

#include <cstring>

#include "base/mmap_file.h"
#include "deepinfer/image.h"
#include "vision/image_preprocess.h"
#include "vision/image_resize.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxSide = 8192;

Status invalid(const std::string& what) {
    return {StatusCode::kInvalidFile, what};
}

NamedTensor bf16_rows(Backend& backend, const Tensor& t, int64_t columns) {
    const int64_t rows = t.dim(0);
    std::vector<uint8_t> raw(static_cast<size_t>(rows * t.stride[0]) * sizeof(bf16));
    Device& device = backend.device();
    device.copy_to_host(device.stream(), raw.data(), t.data, raw.size());
    device.stream().synchronize();
    NamedTensor out;
    out.dtype = "BF16";
    out.shape = {rows, columns};
    for (int64_t r = 0; r < rows; ++r) {
        const auto* p = raw.data() + static_cast<size_t>(r * t.stride[0]) * sizeof(bf16);
        out.bytes.insert(out.bytes.end(), p, p + static_cast<size_t>(columns) * sizeof(bf16));
    }
    return out;
}

EncoderPicture encoder_picture(const PreparedImage& image) {
    return {image.plan.grid_h, image.plan.grid_w, image.patches.data()};
}

}  // namespace

Result<ImageInput> picture_of(const TensorMap& file, const std::string& path) {
    const auto it = file.find("rgb");
    if (it == file.end()) return invalid(path + " holds no rgb");
    const NamedTensor& t = it->second;
    if (t.dtype != "U8" || t.shape.size() != 3 || t.dim(2) != 3)
        return invalid(path + ": rgb must be U8 [height, width, 3]");
    ImageInput input;
    input.height = t.dim(0);
    input.width = t.dim(1);
    input.rgb = t.bytes;
    return input;
}

Result<ImageInput> read_picture(const std::string& path) {
    Result<MmapFile> file = MmapFile::open(path);
    if (!file.ok()) return file.status();
    const std::string_view bytes(reinterpret_cast<const char*>(file->bytes().data()),
                                 file->bytes().size());
    if (check_image_format(bytes).ok()) return read_image_file(path);
    const Result<TensorMap> tensors = read_tensor_file(path);
    if (!tensors.ok())
        return invalid(path + " is neither a picture nor a safetensors file with rgb");
    return picture_of(tensors.value(), path);
}

Result<std::vector<EncodedImage>> encode_pictures(const std::vector<std::string>& paths,
                                                  const Checkpoint& checkpoint,
                                                  Backend& backend) {
    std::vector<EncodedImage> out;
    if (paths.empty()) return out;
    Result<std::unique_ptr<VisionEncoder>> encoder = VisionEncoder::load(checkpoint, backend, 0);
    if (!encoder.ok()) return encoder.status();
    for (const std::string& path : paths) {
        const Result<ImageInput> input = read_picture(path);
        if (!input.ok()) return input.status();
        const Result<PreparedImage> image =
            preprocess_image(input.value(), checkpoint.config().vision, kMaxSide);
        if (!image.ok()) return invalid(path + ": " + image.status().message());
        const EncoderPicture picture = encoder_picture(image.value());
        std::vector<EncodedImage> one = encoder.value()->encode({&picture, 1});
        out.push_back(std::move(one[0]));
    }
    return out;
}

Result<std::vector<LoneSequence::Span>> place_spans(const std::vector<int32_t>& ids,
                                                    int32_t image_token_id,
                                                    const std::vector<EncodedImage>& images,
                                                    const NamedTensor* token_types,
                                                    const std::string& where) {
    std::vector<uint8_t> in_span(ids.size(), 0);
    if (token_types != nullptr) {
        const Result<std::vector<int32_t>> types = int_values(*token_types, "token_types");
        if (!types.ok()) return types.status();
        if (types->size() != ids.size())
            return invalid(where + ": token_types has " + std::to_string(types->size()) +
                           " entries for " + std::to_string(ids.size()) + " tokens");
        for (size_t i = 0; i < ids.size(); ++i) in_span[i] = types.value()[i] >= 0;
    } else {
        for (size_t i = 0; i < ids.size(); ++i)
            in_span[i] = !images.empty() && ids[i] == image_token_id;
    }
    std::vector<LoneSequence::Span> spans;
    for (size_t i = 0; i < ids.size();) {
        if (in_span[i] == 0) {
            ++i;
            continue;
        }
        if (spans.size() == images.size())
            return invalid(where + " has an image token at " + std::to_string(i) + " behind its " +
                           std::to_string(images.size()) + " pictures (--image)");
        const EncodedImage& image = images[spans.size()];
        spans.push_back({static_cast<int64_t>(i), &image});
        const size_t end = i + static_cast<size_t>(image.num_tokens);
        for (; i < end; ++i) {
            if (i >= ids.size() || in_span[i] == 0)
                return invalid(where + ": the span at " + std::to_string(spans.back().begin) +
                               " is shorter than its picture's " +
                               std::to_string(image.num_tokens) + " tokens");
        }
    }
    if (spans.size() != images.size())
        return invalid(where + " has " + std::to_string(spans.size()) + " spans for " +
                       std::to_string(images.size()) + " pictures (--image)");
    return spans;
}

Result<TensorMap> picture_run(const TensorMap& file,
                              const std::string& path,
                              const Checkpoint& checkpoint,
                              Backend& backend) {
    const VisionConfig& config = checkpoint.config().vision;
    Result<std::unique_ptr<VisionEncoder>> encoder = VisionEncoder::load(checkpoint, backend, 0);
    if (!encoder.ok()) return encoder.status();
    const Result<ImageInput> input = picture_of(file, path);
    if (!input.ok()) return input.status();
    const Result<PreparedImage> image = preprocess_image(input.value(), config, kMaxSide);
    if (!image.ok()) return invalid(path + ": " + image.status().message());
    const ImagePlan& plan = image->plan;

    TensorMap out;
    RgbImage rgb;
    rgb.width = input->width;
    rgb.height = input->height;
    rgb.pixels = input->rgb;
    out["padded"] = u8_tensor({plan.target.height, plan.target.width, 3},
                              fit_and_pad(std::move(rgb), plan).pixels);
    out["grid"] = i32_tensor({4},
                             {static_cast<int32_t>(plan.grid_h),
                              static_cast<int32_t>(plan.grid_w),
                              static_cast<int32_t>(plan.llm_h),
                              static_cast<int32_t>(plan.llm_w)});
    const std::vector<int32_t> roles = span_roles(plan);
    out["token_types"] = i32_tensor({plan.num_tokens()}, roles);
    ForwardHooks hooks;
    hooks.observe = [&](const char* name, int layer, int64_t, const Tensor& t) {
        const std::string key = layer < 0 ? name : name + std::to_string(layer);
        // The tower's patches end in zero columns.
        const int64_t columns =
            key == "patches" ? 3 * config.patch_size * config.patch_size : t.dim(1);
        out[key] = bf16_rows(backend, t, columns);
    };
    encoder.value()->watch(&hooks);
    const EncoderPicture picture = encoder_picture(image.value());
    const std::vector<EncodedImage> encoded = encoder.value()->encode({&picture, 1});
    DI_CHECK_EQ(encoded[0].num_tokens, plan.num_tokens());
    return out;
}

}  // namespace deepinfer
