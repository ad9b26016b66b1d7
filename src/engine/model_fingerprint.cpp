#include "engine/model_fingerprint.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace deepinfer {
namespace {

constexpr size_t kMostTensors = 2048;
constexpr size_t kSampleBytes = 64;

}  // namespace

CacheKey model_fingerprint(const Checkpoint& checkpoint) {
    std::vector<const StoredTensor*> tensors;
    for (const StoredTensor& t : checkpoint.tensors()) tensors.push_back(&t);
    std::sort(tensors.begin(), tensors.end(), [](const StoredTensor* a, const StoredTensor* b) {
        return a->name < b->name;
    });

    std::ifstream config(checkpoint.dir() + "/config.json", std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(config), std::istreambuf_iterator<char>()};
    for (const StoredTensor* t : tensors) {
        bytes += '\n' + t->name + ' ' + t->dtype;
        for (int i = 0; i < t->view.ndim; ++i) bytes += ' ' + std::to_string(t->view.dim(i));
    }
    const size_t stride = std::max<size_t>(1, (tensors.size() + kMostTensors - 1) / kMostTensors);
    for (size_t i = 0; i < tensors.size(); i += stride) {
        const Tensor& view = tensors[i]->view;
        const auto* data = static_cast<const char*>(view.data);
        const size_t size = static_cast<size_t>(view.bytes()),
                     sample = std::min(size, kSampleBytes);
        for (const size_t at : {size_t{0}, (size - sample) / 2, size - sample}) {
            bytes.append(data + at, sample);
        }
    }
    const auto* raw = reinterpret_cast<const uint8_t*>(bytes.data());
    return block_key(CacheKey{}, {}, {raw, bytes.size()});
}

}  // namespace deepinfer
