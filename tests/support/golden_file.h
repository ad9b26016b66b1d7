// A small safetensors reader for tests: golden vectors and dumps. Independent of src/checkpoint on
// purpose.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deepinfer::testing {

struct GoldenTensor {
    std::string dtype;  ///< "BF16", "F32", "I32", …
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;

    int64_t numel() const;
    std::vector<float> floats() const;  ///< BF16, F32, F64 (rounded)
    std::vector<double> doubles() const;
    std::vector<int64_t> ints() const;  ///< integer dtypes
    std::vector<uint16_t> bf16_bits() const;
};

/// Every tensor of the file. Aborts the test program with a message if it cannot be read.
std::map<std::string, GoldenTensor> read_golden(const std::string& path);

/// Absolute path of a file below the source tree's tests/data, for example
/// data_path("unit/rms_norm.safetensors").
std::string data_path(const std::string& relative);

/// Absolute path of a test checkpoint made at build time ("nano", "nano512"), or of the
/// demonstration checkpoint ("demo").
std::string checkpoint_path(const std::string& name);

}  // namespace deepinfer::testing
