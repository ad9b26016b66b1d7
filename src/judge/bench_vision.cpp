// bench_vision: the encoder's sweep over picture sizes and batches.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "deepinfer/judge.h"
#include "judge/pictures.h"
#include "model/vision_encoder.h"
#include "vision/image_preprocess.h"

namespace deepinfer {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRoofs = 9;  ///< measurements of the roof, some milliseconds each, before a batch

double seconds_of(const std::function<void()>& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double quantile(std::vector<double> v, double share) {
    std::sort(v.begin(), v.end());
    const auto at = static_cast<size_t>(share * static_cast<double>(v.size()));
    return v[std::min(at, v.size() - 1)];
}

/// Multiplications and additions of one picture (vision spec 6.3).
double flops_of(const ImagePlan& plan, const VisionConfig& v, int64_t text_width) {
    const auto n = static_cast<double>(plan.num_patches()), e = static_cast<double>(v.hidden_size),
               layers = static_cast<double>(v.num_hidden_layers),
               inner = static_cast<double>(v.intermediate_size),
               d = static_cast<double>(text_width),
               cells = static_cast<double>(plan.llm_h * plan.llm_w),
               area = static_cast<double>(v.downsample_ratio * v.downsample_ratio);
    const double patch = 3.0 * static_cast<double>(v.patch_size * v.patch_size);
    return n * 2 * (patch * e + layers * (4 * e * e + 3 * e * inner)) + 4 * e * layers * n * n +
           cells * 2 * (area * e * d + d * d);
}

ImageInput synthetic(int64_t w, int64_t h) {
    ImageInput input;
    input.width = w;
    input.height = h;
    input.rgb.resize(static_cast<size_t>(w * h * 3));
    uint32_t state = 1;
    for (uint8_t& p : input.rgb)
        p = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
    return input;
}

Result<Checkpoint> open_checkpoint(const VisionBenchOptions& o) {
    if (o.synthetic.empty()) return Checkpoint::open(o.model_dir);
    Result<SyntheticModel> model = parse_synthetic(o.synthetic);
    if (!model.ok()) return model.status();
    return Checkpoint::generate(std::move(model).value());
}

/// From the bytes of files to patches, as a worker does it.
Status bench_files(const VisionBenchOptions& o,
                   const VisionConfig& v,
                   const std::function<void(const std::string& json)>& record) {
    for (const std::string& path : o.images) {
        Result<ImageInput> input = read_picture(path);
        if (!input.ok()) return input.status();
        const Result<ImagePlan> plan = plan_input(input.value(), v, 8192);
        if (!plan.ok()) return plan.status();
        std::vector<uint8_t> patches(
            static_cast<size_t>(plan->num_patches() * 3 * v.patch_size * v.patch_size));
        std::vector<double> times;
        Status status;
        for (int k = -o.warmup; k < o.iters; ++k) {
            if (o.cancel != nullptr && o.cancel->load()) return {};
            const double s = seconds_of([&] {
                status = preprocess_into(input.value(), plan.value(), v, 8192, patches.data());
            });
            DI_RETURN_IF_ERROR(status);
            if (k >= 0) times.push_back(s);
        }
        Json r;
        r["bench"] = "ve";
        r["image"] = path;
        r["target"] = {plan->target.width, plan->target.height};
        r["tokens_per_image"] = plan->num_tokens();
        r["cpu_ms_per_image"] = quantile(times, 0.5) * 1e3;
        r["cpu_ms_p90"] = quantile(times, 0.9) * 1e3;
        record(r.dump());
    }
    return {};
}

}  // namespace

Status bench_vision(const VisionBenchOptions& o,
                    const std::function<void(const std::string& json)>& record) {
    BackendOptions options;
    options.num_threads = o.threads;
    options.isa = o.isa;
    Result<std::unique_ptr<Backend>> backend = create_backend(o.backend, options);
    if (!backend.ok()) return backend.status();
    const Result<Checkpoint> checkpoint = open_checkpoint(o);
    if (!checkpoint.ok()) return checkpoint.status();
    const VisionConfig& v = checkpoint->config().vision;
    if (!checkpoint->config().has_vision)
        return Status(StatusCode::kInvalidArgument, "the checkpoint has no vision tower");
    if (!o.images.empty()) return bench_files(o, v, record);
    std::vector<PreparedImage> images;
    std::vector<double> cpu_s;
    int64_t most = 0;
    for (const auto& [w, h] : o.sizes) {
        const ImageInput input = synthetic(w, h);
        std::vector<double> times;
        for (int i = 0; i < 3; ++i) {
            Status status;
            times.push_back(seconds_of([&] {
                Result<PreparedImage> p = preprocess_image(input, v, 8192);
                status = p.status();
                if (p.ok() && i == 0) images.push_back(std::move(p).value());
            }));
            DI_RETURN_IF_ERROR(status);
        }
        cpu_s.push_back(quantile(times, 0.5));
        most = std::max(most, images.back().plan.num_patches());
    }
    const int64_t largest_batch = *std::max_element(o.batches.begin(), o.batches.end());
    Result<std::unique_ptr<VisionEncoder>> encoder =
        VisionEncoder::load(checkpoint.value(), *backend.value(), most * largest_batch);
    if (!encoder.ok()) return encoder.status();
    for (size_t i = 0; i < images.size(); ++i) {
        const ImagePlan& plan = images[i].plan;
        for (const int64_t batch : o.batches) {
            const std::vector<EncoderPicture> pictures(
                static_cast<size_t>(batch),
                EncoderPicture{plan.grid_h, plan.grid_w, images[i].patches.data()});
            std::vector<double> times, roofs;
            for (int k = -o.warmup; k < o.iters; ++k) {
                if (o.cancel != nullptr && o.cancel->load()) return {};
                for (int n = 0; n < kRoofs; ++n)
                    roofs.push_back(backend.value()->measure_roof(Roof::kDot));
                encoder.value()->begin(pictures);  // host to device: not measured
                const double s = seconds_of([&] {
                    encoder.value()->advance(encoder.value()->num_stages());
                    backend.value()->device().stream().synchronize();
                });
                encoder.value()->take();
                if (k >= 0) times.push_back(s);
            }
            const double s = quantile(times, 0.5), b = static_cast<double>(batch);
            const double flops = b * flops_of(plan, v, checkpoint->config().hidden_size);
            Json r;
            r["bench"] = "ve";
            r["size"] = std::to_string(o.sizes[i].first) + "x" + std::to_string(o.sizes[i].second);
            r["batch"] = batch;
            r["grid"] = {plan.grid_h, plan.grid_w};
            r["patches"] = plan.num_patches();
            r["cells"] = plan.llm_h * plan.llm_w;
            r["tokens_per_image"] = plan.num_tokens();
            r["median_ms"] = s * 1e3;
            r["p90_ms"] = quantile(times, 0.9) * 1e3;
            r["images_per_s"] = b / s;
            r["patches_per_s"] = b * static_cast<double>(plan.num_patches()) / s;
            r["llm_tokens_per_s"] = b * static_cast<double>(plan.num_tokens()) / s;
            r["gflops_per_s"] = flops / s * 1e-9;
            if (const double roof = quantile(roofs, 0.5); roof > 0) {
                r["dot_roof_gflops_per_s"] = roof * 1e-9;
                r["share"] = flops / s / roof;
            }
            r["cpu_ms_per_image"] = cpu_s[i] * 1e3;
            r["dtype"] = "bf16";
            r["device"] = backend.value()->description();
            r["vision_config"] = {v.num_hidden_layers,
                                  v.hidden_size,
                                  v.num_attention_heads,
                                  v.intermediate_size,
                                  v.max_image_tokens};
            record(r.dump());
        }
    }
    return {};
}

}  // namespace deepinfer
