// What the expert kernels share: routing, parameters, and the numbers of one hidden value.
#pragma once

#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/numerics.cuh"
#include "tensor/dtype.h"

namespace deepinfer::cuda {

/// Rows of every expert: slots [begin[e], begin[e + 1]), the row and weight of each. Null pointers:
/// one expert that owns slot t = row t for all num_rows rows with weight 1.
struct Routing {
    int32_t* begin;
    int32_t* slot_row;
    float* slot_weight;
    int32_t* pair_slot;  ///< [rows · k] slot of choice i of row t
    int num_rows, num_slots;
};

__device__ __forceinline__ int slot_begin(const Routing& r, int e) {
    return r.begin != nullptr ? r.begin[e] : 0;
}
__device__ __forceinline__ int slot_end(const Routing& r, int e) {
    return r.begin != nullptr ? r.begin[e + 1] : r.num_rows;
}

struct ExpertParams {
    const ExpertPointers* table;  ///< null: `single`
    ExpertPointers single;
    Routing routing;
    const uint16_t* x;  ///< up: quantized rows; down: hidden slots
    int64_t x_stride;
    int k, chunks, slices;
    int n;  ///< up: intermediate size; down: hidden size
    float limit;
    uint16_t* out;  ///< up: hidden [slots, n]; down: y [slots, n]
    bool aligned;
};

__device__ __forceinline__ ExpertPointers expert_of(const ExpertParams& p) {
    return p.table != nullptr ? p.table[blockIdx.y] : p.single;
}

/// silu(min(g, limit)) · clamp(u, ±limit) · w; comparisons, not fminf, so that NaN stays.
__device__ __forceinline__ float swiglu_value(float g, float u, float w, float limit) {
    if (limit > 0.0f) {
        if (g > limit) g = limit;
        if (u > limit) u = limit;
        if (u < -limit) u = -limit;
    }
    return g / (1.0f + expf(-g)) * u * w;
}

/// Hidden value before q8, as bf16 bits.
__device__ __forceinline__ uint16_t swiglu_bits(float g, float u, float w, float limit) {
    return round_bf16_bits(swiglu_value(round_bf16(g), round_bf16(u), w, limit));
}
/// Scale byte of a q8 block whose largest magnitude is amax (at least 1e-4), and a value after q8
/// as bf16 bits.
__device__ __forceinline__ uint32_t q8_scale(float amax) {
    return ue8m0_scale_byte(amax, 1.0f / 448.0f);
}
__device__ __forceinline__ uint16_t q8_bits(float h, uint32_t scale) {
    return round_bf16_bits(e4m3_value(e4m3_code(h * ue8m0_inverse(scale))) * ue8m0_value(scale));
}

/// Hidden value after bf16 and q8, as bf16 bits. The warp's lanes hold one block of 32.
__device__ __forceinline__ uint16_t hidden_bits(float g, float u, float w, float limit) {
    const float h = bf16_value(swiglu_bits(g, u, w, limit));
    return q8_bits(h, q8_scale(group_max<32>(fmaxf(fabsf(h), 1e-4f))));
}

/// Both halves of the feed-forward on wgmma, for about `rows` activation rows an expert.
void wide_experts(Stream& stream,
                  DType t,
                  const ExpertParams& up,
                  const ExpertParams& down,
                  int experts,
                  double rows);

/// The same on the cluster core. down.out holds the rows in slot order until the hidden rows are
/// finished.
bool cluster_experts_take(
    DType t, const ExpertParams& up, const ExpertParams& down, int experts, double rows);
void cluster_experts(Stream& stream,
                     DType t,
                     const ExpertParams& up,
                     const ExpertParams& down,
                     int experts,
                     double rows);
void cluster_experts_fp8(
    Stream& stream, const ExpertParams& up, const ExpertParams& down, int experts, double rows);

}  // namespace deepinfer::cuda
