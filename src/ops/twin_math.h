// Small pieces of arithmetic that several twins share. Only *_ref.cpp files include this.
//
// `Acc` is float in the ref table and double in the exact one; std::exp and friends follow it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "device/stream.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace deepinfer::twin {

/// DType of an accumulator type.
template <typename Acc>
constexpr DType acc_dtype() {
    return sizeof(Acc) == sizeof(double) ? DType::kF64 : DType::kF32;
}

/// Σ a[i] · b[i] in a fixed order: eight interleaved partial sums, then those in ascending order.
/// The order depends on n alone (eight lanes because one chain of additions would wait on itself).
template <typename Acc>
Acc dot(const Acc* a, const Acc* b, int64_t n) {
    Acc lane[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int l = 0; l < 8; ++l) lane[l] += a[i + l] * b[i + l];
    }
    for (int l = 0; i < n; ++i, ++l) lane[l] += a[i] * b[i];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
           ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

template <typename Acc>
Acc sigmoid(Acc x) {
    return Acc(1) / (Acc(1) + std::exp(-x));
}

/// out[i] = x[i] in the accumulator type.
template <typename Acc>
void widen(const bf16* x, int64_t n, Acc* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Acc>(to_float(x[i]));
}
template <typename Acc>
void widen(const float* x, int64_t n, Acc* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Acc>(x[i]);
}

/// The last dimension of `t` is dense and all dimensions but the first one are packed behind it.
inline bool rows_dense(const Tensor& t) {
    return t.dim(0) == 0 || t.rows(0, 1).dense();
}

}  // namespace deepinfer::twin
