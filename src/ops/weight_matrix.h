// WeightMatrix: one linear layer's weight as the checkpoint stores it, plus a backend's own copy.
//
//   FP8   weight e4m3 [n, k],    scale ue8m0 [ceil(n/32), ceil(k/32)]   value = w · 2^(scale - 127)
//   FP4   weight e2m1 [n, k] packed two a byte (low nibble first), scale ue8m0 [n, k/32]
//   BF16  weight bf16 [n, k]     no scale
//   F32   weight f32  [n, k]     no scale
//
// `packed` belongs to the backend that made it (Backend::prepare): another layout of the same
// values. A twin reads weight and scale only. Pointers are device memory unless the backend is a
// host one.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace deepinfer {

struct WeightMatrix {
    DType dtype = DType::kBF16;
    int64_t n = 0;  ///< output features (rows)
    int64_t k = 0;  ///< input features (contraction)
    const void* weight = nullptr;
    const uint8_t* scale = nullptr;
    const void* packed = nullptr;

    explicit operator bool() const { return weight != nullptr; }
    /// Stored bytes, scales included.
    int64_t bytes() const {
        int64_t b = n * k * dtype_bits(dtype) / 8;
        if (dtype == DType::kFP8E4M3) b += ((n + 31) / 32) * ((k + 31) / 32);
        if (dtype == DType::kFP4) b += n * (k / 32);
        return b;
    }
};

/// Gate (w1), up (w3) and down (w2) of one feed-forward expert. w1, w3: [I, D]; w2: [D, I].
struct ExpertWeights {
    WeightMatrix w1, w3, w2;
};

}  // namespace deepinfer
