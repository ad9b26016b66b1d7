// Named tensors in a safetensors file: what the judge's door reads and writes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

/// A tensor with its own bytes. `dtype` in safetensors spelling: "BF16", "F32", "I32", "U8", …
struct NamedTensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;

    int64_t numel() const;
    int64_t dim(size_t i) const { return shape[i]; }
};

using TensorMap = std::map<std::string, NamedTensor>;

/// kInvalidFile on any defect; the file is untrusted.
Result<TensorMap> read_tensor_file(const std::string& path);
/// Writes to a temporary name and renames, so a reader never sees half a file.
Status write_tensor_file(const std::string& path, const TensorMap& tensors);

NamedTensor i32_tensor(std::vector<int64_t> shape, const std::vector<int32_t>& values);
NamedTensor f32_tensor(std::vector<int64_t> shape, const std::vector<float>& values);
NamedTensor u8_tensor(std::vector<int64_t> shape, std::vector<uint8_t> values);
/// Values that are exact in bf16, stored as such.
NamedTensor bf16_tensor(std::vector<int64_t> shape, const std::vector<float>& values);

/// The values of an integer tensor (I32, I64, U8, …). kInvalidFile if it is not one, naming `name`.
Result<std::vector<int32_t>> int_values(const NamedTensor& t, const std::string& name);

}  // namespace deepinfer
