// The sum of squares of a bf16 row, in the one order that every kernel with an RMS norm in it
// follows, and the activation rounding that may come after it.
//
// Groups of eight neighbours are chained from zero; the 32 groups of a run (256 values) are added
// in a butterfly; runs are added in ascending order. Who computes a run is free.
#pragma once

#include "backends/cuda/numerics.cuh"

namespace deepinfer::cuda {

constexpr int kMaxSquareRuns = 128;  ///< rows of up to 32768 values

__host__ __device__ inline int square_runs(int n) {
    return (n + 255) / 256;
}

__device__ __forceinline__ float group_squares(const Bf16x8& v) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float a = bf16_value(v.v[j]);
        sum = fmaf(a, a, sum);
    }
    return sum;
}

/// All lanes of the warp: its groups' sums become one run.
__device__ __forceinline__ void store_run(float group, int run, float* runs) {
    group = warp_sum(group);
    if ((threadIdx.x & 31) == 0) runs[run] = group;
}

__device__ __forceinline__ float inverse_rms(const float* runs, int num_runs, int n, float eps) {
    float total = 0.0f;
    for (int r = 0; r < num_runs; ++r) total += runs[r];
    return 1.0f / sqrtf(total / static_cast<float>(n) + eps);
}

/// q8 of a block of 32 held by four neighbouring lanes; all lanes of the warp take part.
__device__ __forceinline__ Bf16x8 q8_group(Bf16x8 v) {
    float amax = 1e-4f;
#pragma unroll
    for (int j = 0; j < 8; ++j) amax = fmaxf(amax, fabsf(bf16_value(v.v[j])));
    amax = group_max<4>(amax);
    const uint32_t e = ue8m0_scale_byte(amax, 1.0f / 448.0f);
    const float inverse = ue8m0_inverse(e), scale = ue8m0_value(e);
#pragma unroll
    for (int j = 0; j < 8; ++j)
        v.v[j] = round_bf16_bits(e4m3_value(e4m3_code(bf16_value(v.v[j]) * inverse)) * scale);
    return v;
}

}  // namespace deepinfer::cuda
