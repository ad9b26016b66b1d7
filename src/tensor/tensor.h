// Tensor: a typed view of memory that somebody else owns. Plain data, cheap to copy.
//
// Shapes count elements (an FP4 row of k values has k/2 bytes). The last dimension is dense; every
// other one has a stride in elements. Memory may be a device's: only backends read through `data`.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace deepinfer {

struct Tensor {
    static constexpr int kMaxDims = 4;

    void* data = nullptr;
    DType dtype = DType::kF32;
    int ndim = 0;
    std::array<int64_t, kMaxDims> shape{};
    std::array<int64_t, kMaxDims> stride{};  ///< in elements

    Tensor() = default;
    /// A dense tensor over `p`.
    Tensor(void* p, DType t, std::initializer_list<int64_t> dims)
        : data(p), dtype(t), ndim(static_cast<int>(dims.size())) {
        DI_CHECK(dims.size() <= kMaxDims);
        int i = 0;
        for (int64_t d : dims) shape[static_cast<size_t>(i++)] = d;
        int64_t s = 1;
        for (i = ndim - 1; i >= 0; --i) {
            stride[static_cast<size_t>(i)] = s;
            s *= shape[static_cast<size_t>(i)];
        }
    }

    explicit operator bool() const { return data != nullptr; }
    int64_t dim(int i) const { return shape[static_cast<size_t>(i < 0 ? ndim + i : i)]; }
    int64_t numel() const {
        int64_t n = 1;
        for (int i = 0; i < ndim; ++i) n *= shape[static_cast<size_t>(i)];
        return n;
    }
    bool dense() const {
        int64_t s = 1;
        for (int i = ndim - 1; i >= 0; --i) {
            if (shape[static_cast<size_t>(i)] != 1 && stride[static_cast<size_t>(i)] != s)
                return false;
            s *= shape[static_cast<size_t>(i)];
        }
        return true;
    }
    int64_t bytes() const { return numel() * dtype_bits(dtype) / 8; }

    /// Pointer to row i of the first dimension.
    template <typename T>
    T* row(int64_t i) const {
        return static_cast<T*>(data) + i * stride[0];
    }
    template <typename T>
    T* ptr() const {
        return static_cast<T*>(data);
    }

    /// Rows [begin, end) of the first dimension.
    Tensor rows(int64_t begin, int64_t end) const {
        Tensor t = *this;
        t.data = static_cast<uint8_t*>(data) + begin * stride[0] * dtype_bits(dtype) / 8;
        t.shape[0] = end - begin;
        return t;
    }
    /// Columns [begin, end) of the last dimension (byte-aligned dtypes).
    Tensor cols(int64_t begin, int64_t end) const {
        Tensor t = *this;
        t.data = static_cast<uint8_t*>(data) + begin * dtype_bits(dtype) / 8;
        t.shape[static_cast<size_t>(ndim - 1)] = end - begin;
        return t;
    }
    /// The same dense elements under another shape.
    Tensor reshaped(std::initializer_list<int64_t> dims) const {
        DI_CHECK(dense());
        Tensor t(data, dtype, dims);
        DI_CHECK_EQ(t.numel(), numel());
        return t;
    }

    /// "bf16[12, 4, 384]"
    std::string to_string() const;
};

/// Calls f with float or double as the type tag of an accumulator dtype (F32 or F64).
template <typename F>
void dispatch_acc(DType t, F&& f) {
    if (t == DType::kF64) {
        f(double{});
    } else {
        DI_CHECK(t == DType::kF32);
        f(float{});
    }
}

}  // namespace deepinfer
