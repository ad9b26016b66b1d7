// Tensors as kernels take them: a pointer, a row stride and whether 16-byte accesses are allowed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/batch_view.h"
#include "tensor/tensor.h"

namespace deepinfer::cuda {

/// Rows of bf16 bits. `aligned`: every row starts at a 16-byte address.
struct Bf16Rows {
    uint16_t* data;
    int64_t stride;
    bool aligned;
    __device__ uint16_t* row(int64_t i) const { return data + i * stride; }
};

inline Bf16Rows bf16_rows(const Tensor& t) {
    DI_CHECK(t.dtype == DType::kBF16);
    const bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride[0] % 8 == 0;
    return {static_cast<uint16_t*>(t.data), t.stride[0], aligned};
}

/// BatchView's tensors as plain pointers.
struct BatchPointers {
    const int32_t* positions;
    const int32_t* row_seq;
    const int32_t* seq_rows;
    const int32_t* seq_start;
    const int32_t* seq_slot;
    const int32_t* window_floor;
    const int32_t* block_table;
    int64_t block_stride;
};

inline BatchPointers batch_pointers(const BatchView& b) {
    return {b.positions.ptr<int32_t>(),
            b.row_seq.ptr<int32_t>(),
            b.seq_rows.ptr<int32_t>(),
            b.seq_start.ptr<int32_t>(),
            b.seq_slot.ptr<int32_t>(),
            b.window_floor.ptr<int32_t>(),
            b.block_table.ptr<int32_t>(),
            b.block_table.ndim > 0 ? b.block_table.stride[0] : 0};
}

/// Columns of a 2-d+ tensor: everything after the first dimension (dense).
inline int64_t row_elements(const Tensor& t) {
    return t.dim(0) == 0 ? 0 : t.numel() / t.dim(0);
}

}  // namespace deepinfer::cuda
