// The exact set of tensors that a config implies: names, encodings, shapes (model spec 2.3, vision
// spec 3).
//
// Nothing here reads a file. Checkpoint::open compares this set with what the shards hold; inspect
// prints both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/hf_config.h"

namespace deepinfer {

/// How a tensor is stored. Which safetensors dtypes that allows: accepts_dtype().
enum class WeightKind {
    kPlain,        ///< BF16 or F32: everything that is not quantized
    kFp8,          ///< F8_E4M3 [n, k], one scale per 32×32 tile
    kFp8Scale,     ///< F8_E8M0 or U8 [ceil(n/32), k/32]
    kFp4,          ///< I8 [n, k/2], two E2M1 codes a byte, low nibble first
    kFp4Scale,     ///< F8_E8M0 or U8 [n, k/32]
    kEngramTable,  ///< F8_E4M3 [rows, width]; never read as a whole
    kEngramScale,  ///< F8_E8M0 or U8 [rows, width/32]; never read as a whole
};

struct ExpectedTensor {
    std::string name;
    WeightKind kind = WeightKind::kPlain;
    std::vector<int64_t> shape;  ///< as stored (FP4: bytes in the last dimension)
    std::string dims;            ///< the shape in the config's words, for messages
    bool optional = false;       ///< may be absent
};

/// Largest set that is worth building; a config that asks for more is refused (release: 96,085).
constexpr int64_t kMaxExpectedTensors = 2'000'000;

/// Size of expected_tensors() by arithmetic alone, so that a config cannot make us allocate.
int64_t count_expected_tensors(const ModelConfig& config);

/// Every tensor of the checkpoint, backbone first, in a fixed order. Needs
/// count_expected_tensors() <= kMaxExpectedTensors.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

/// mtp.*.embed.weight and mtp.*.head.weight: copies of backbone tensors that some converters keep.
bool is_ignored_leftover(std::string_view name);

/// Whether a safetensors dtype may hold a tensor of this kind.
bool accepts_dtype(WeightKind kind, const std::string& dtype);
/// "F8_E8M0 or U8", for messages.
const char* accepted_dtypes(WeightKind kind);

}  // namespace deepinfer
