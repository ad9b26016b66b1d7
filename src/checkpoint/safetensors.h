// Reader of the safetensors container: 8-byte little-endian header length, JSON header, data.
//
// The bytes are untrusted. Nothing is allocated or read by a number of the file before that number
// was checked: the header length against the file and a fixed limit, shapes with overflow-checked
// products, offsets against the data section. Tensors must tile the data section: no overlap, no
// hole, no tail, as the format demands. What the tensors mean is for others (weight_names.h,
// checkpoint.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
constexpr size_t kMaxSafetensorsDims = 8;

struct SafetensorsEntry {
    std::string name;
    std::string dtype;           ///< as spelled in the file, a known one
    std::vector<int64_t> shape;  ///< stored shape; empty = scalar
    uint64_t begin = 0;          ///< byte offsets from the start of the file
    uint64_t end = 0;
};

/// The tensors of one file, in the order of their bytes. kInvalidFile says what is wrong; `where`
/// names the file in messages. The span is the whole file; only its header is touched.
Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const uint8_t> file,
                                                        const std::string& where);

/// Bits of one element of a safetensors dtype, 0 if the dtype is unknown.
int safetensors_dtype_bits(const std::string& dtype);

/// "[4096, 1280]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace deepinfer
