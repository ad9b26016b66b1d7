#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deepinfer {

std::vector<float> rope_frequencies(int64_t rope_dim, double theta, const RopeScaling* yarn) {
    std::vector<float> f(static_cast<size_t>(rope_dim / 2));
    for (size_t i = 0; i < f.size(); ++i) {
        const float p = static_cast<float>(
            std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(rope_dim)));
        f[i] = 1.0f / p;
    }
    if (yarn == nullptr || !yarn->yarn) return f;

    // Dimension at which n rotations fit into the original context.
    const auto correction_dim = [&](double n) {
        return static_cast<double>(rope_dim) *
               std::log(static_cast<double>(yarn->original_max_position_embeddings) /
                        (2.0 * std::numbers::pi * n)) /
               (2.0 * std::log(theta));
    };
    const double low = std::max(std::floor(correction_dim(yarn->beta_fast)), 0.0);
    const double high =
        std::min(std::ceil(correction_dim(yarn->beta_slow)), static_cast<double>(rope_dim - 1));
    const float span = static_cast<float>(std::max(high - low, 1e-3));
    const float factor = static_cast<float>(yarn->factor);
    for (size_t i = 0; i < f.size(); ++i) {
        const float ramp =
            std::clamp((static_cast<float>(i) - static_cast<float>(low)) / span, 0.0f, 1.0f);
        const float keep = 1.0f - ramp;
        const float interpolated = (f[i] / factor) * (1.0f - keep);
        const float kept = f[i] * keep;
        f[i] = interpolated + kept;
    }
    return f;
}

std::vector<float> layer_rope_frequencies(const ModelConfig& config, bool compressed) {
    return compressed
               ? rope_frequencies(
                     config.qk_rope_head_dim, config.compress_rope_theta, &config.rope_scaling)
               : rope_frequencies(config.qk_rope_head_dim, config.rope_theta, nullptr);
}

}  // namespace deepinfer
