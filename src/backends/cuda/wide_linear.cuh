// The linear layer's parameters, shared by its streaming kernel and its wide kernel for many rows.
#pragma once

#include "device/stream.h"
#include "tensor/dtype.h"

namespace deepinfer::cuda {

struct LinearParams {
    const uint8_t* packed;
    int chunks, slices;
    int k;
    int group_rows;  ///< weight rows of one group; group g reads x columns from g · k
    const uint16_t* x;
    int64_t x_stride;
    bool aligned;
    int num_rows;
    void* out;
    int64_t out_stride;
    bool out_f32;
    const float* bias;  ///< added to the finished sum of a weight row, or null
};

/// Takes aligned rows and groups that start at whole row tiles.
bool wide_linear_takes(const LinearParams& p, int groups);
void wide_linear(Stream& stream, const char* name, DType t, const LinearParams& p, int groups);

/// What wide_linear would take for more than 32 rows, estimated.
double wide_linear_us(DType t, const LinearParams& p, int groups);

/// The same on the cluster core: FP8 and FP4 matrices with many rows, where that takes less than
/// otherwise_us.
bool cluster_linear_takes(const LinearParams& p, DType t, int groups, double otherwise_us);
void cluster_linear(Stream& stream, const char* name, DType t, const LinearParams& p, int groups);

}  // namespace deepinfer::cuda
