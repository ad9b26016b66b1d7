// Fuzz target: the safetensors container.
//
// First byte even: the rest is the file. Odd: the rest is a header text, and the length in front
// and a data section of the size that its last offset wants are made here, so that mutations reach
// the checks behind the JSON parser.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/safetensors.h"

namespace {

void require(bool ok) {
    if (!ok) std::abort();
}

std::string with_length(const std::string& header, size_t data_bytes) {
    std::string file;
    for (int i = 0; i < 8; ++i) file += static_cast<char>((header.size() >> (8 * i)) & 255u);
    return file + header + std::string(data_bytes, '\1');
}

/// What holds for every accepted file, whatever it looks like.
void check(const std::string& file) {
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(file.data()),
                                         file.size());
    const auto result = deepinfer::parse_safetensors(bytes, "fuzz");
    if (!result.ok()) {
        require(!result.status().message().empty());
        return;
    }
    uint64_t at = 0;
    unsigned sum = 0;
    for (const deepinfer::SafetensorsEntry& e : result.value()) {
        require(e.begin <= e.end && e.end <= file.size());
        require(at == 0 || e.begin == at);
        at = e.end;
        const int bits = deepinfer::safetensors_dtype_bits(e.dtype);
        require(bits > 0 && e.shape.size() <= deepinfer::kMaxSafetensorsDims);
        uint64_t n = static_cast<uint64_t>(bits) / 8;
        bool empty = false;
        for (int64_t d : e.shape) empty = empty || d == 0;
        for (int64_t d : e.shape) n = empty ? 0 : n * static_cast<uint64_t>(d);
        require(n == e.end - e.begin);
        for (uint64_t i = e.begin; i < e.end; ++i) sum += static_cast<unsigned char>(file[i]);
    }
    require(result->empty() || at == file.size());
    volatile unsigned keep = sum;
    (void)keep;
}

/// The largest number in the text that a small data section can serve.
size_t wanted_bytes(const std::string& header) {
    size_t best = 0;
    for (size_t i = 0; i < header.size();) {
        size_t n = 0;
        const size_t start = i;
        while (i < header.size() && header[i] >= '0' && header[i] <= '9' && i - start < 6) {
            n = n * 10 + static_cast<size_t>(header[i++] - '0');
        }
        if (n <= 65536) best = std::max(best, n);
        if (i == start) ++i;
    }
    return best;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    if (data[0] % 2 == 0)
        check(rest);
    else
        check(with_length(rest, wanted_bytes(rest)));
    return 0;
}
