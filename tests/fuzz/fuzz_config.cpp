// Fuzz target: config.json. An accepted config must keep its promises: bounded sizes, sources that
// exist, a tensor set as large as announced.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/hf_config.h"
#include "checkpoint/weight_names.h"

namespace {

void require(bool ok) {
    if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const auto result = deepinfer::parse_model_config(text, "fuzz");
    if (!result.ok()) {
        require(!result.status().message().empty());
        return 0;
    }
    const deepinfer::ModelConfig& c = result.value();
    const int64_t all = c.num_hidden_layers + c.num_nextn_predict_layers;
    require(static_cast<int64_t>(c.compress_ratios.size()) == all);
    for (int64_t l = 0; l < all; ++l) {
        const int64_t kv = c.kv_source(l), index = c.index_source(l);
        if (c.ratio(l) == 0) {
            require(kv == -1 && index == -1);
        } else {
            require(kv >= 0 && kv <= l && c.ratio(kv) == c.ratio(l));
            require(index >= kv && index <= l && c.kv_source(index) == kv);
        }
    }
    for (size_t t = 0; t < c.engram_layer_ids.size(); ++t) {
        const auto multipliers = deepinfer::engram_multipliers(
            c.engram_layer_ids[t], c.engram_max_ngram_size, c.engram_compressed_vocab_size);
        for (int64_t m : multipliers) require(m > 0 && m % 2 == 1);
    }
    const int64_t count = deepinfer::count_expected_tensors(c);
    require(count > 0);
    constexpr int64_t kQuick = 20'000;  // larger sets only cost time here
    if (count > kQuick) return 0;
    for (const deepinfer::ExpectedTensor& t : deepinfer::expected_tensors(c)) {
        require(!t.name.empty());
        int64_t n = 1;
        for (int64_t d : t.shape) require(d > 0 && !__builtin_mul_overflow(n, d, &n));
    }
    return 0;
}
