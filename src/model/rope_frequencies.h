// RoPE frequencies of the two tables (window layers; compressed layers with YaRN).
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/hf_config.h"

namespace deepinfer {

/// f_i = fp32(1 / fp32(theta^(2i/rd))), i < rd/2: two roundings, as the reference has them. With
/// `yarn` the frequencies are interpolated in fp32 in the written order of model spec 3.2.
std::vector<float> rope_frequencies(int64_t rope_dim, double theta, const RopeScaling* yarn);

/// The table of a layer with the given compress ratio: ratio 0 rotates with rope_theta, others with
/// compress_rope_theta and YaRN (for everything in that layer).
std::vector<float> layer_rope_frequencies(const ModelConfig& config, bool compressed);

}  // namespace deepinfer
