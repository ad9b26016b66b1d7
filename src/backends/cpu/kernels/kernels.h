// The kernels of one ISA level, as plain functions over pointers.
//
// The op wrappers (src/ops/*/*_cpu.cpp) check shapes, split work over threads and call these; the ISA
// files (*_cpu.cpp, *_avx2.cpp, *_avx512.cpp, *_amx.cpp) fill them in from the sources in this folder.
// Only plain structs here: a function defined in this header would be compiled with ISA flags and
// could be picked by the linker for the baseline.
#pragma once

#include <cstdint>

namespace deepinfer::cpu {

/// Rows of a weight that one packed panel holds, and outputs that one call of a GEMM kernel makes.
constexpr int kPanelRows = 32;
constexpr int kBlockK = 32;  ///< k values that share a scale; the partial sums of a GEMM end here

/// How a packed panel stores its 32 weight rows (pack.h writes them).
///
///   kFp8    k × [32 codes], then k/32 E8M0 bytes
///   kFp4    k/8 × [32 words of 8 nibbles], then k/32 × [32 E8M0 bytes]; nibble 4t of a word holds
///           k = 2t, nibble 16 + 4t holds k = 2t + 1 (one shift serves a bf16 pair)
///   kBf16   two halves of 16 rows, each k/2 × [16 pairs (k, k + 1)]
///   kF32    k × [32 floats]
///   kFp8Pair  two halves of 16 rows, each k/2 × [16 pairs (k, k + 1) of codes]; then k/32 E8M0 (AMX)
enum class PanelFormat : uint8_t { kFp8, kFp4, kBf16, kF32, kFp8Pair };

/// c[m, 0..31] = Σ_k x[m, k] · panel[k, 0..31] for num_rows rows.
///
/// One order for every row count: blocks of 32 k ascending; inside a block k ascending from zero, then
/// the block's partial sum is added to c.
struct GemmArgs {
    const float* x = nullptr;          ///< [num_rows, k] fp32 (FMA levels)
    const uint16_t* x_bf16 = nullptr;  ///< the same as bf16 (AMX level)
    int64_t ldx = 0;                   ///< elements between rows of x or x_bf16
    int64_t num_rows = 0;
    const uint8_t* panel = nullptr;
    int64_t k = 0;
    float* c = nullptr;  ///< [num_rows, 32], overwritten
};
using GemmKernel = void (*)(const GemmArgs&);

struct LinearKernels {
    GemmKernel fp8 = nullptr, fp4 = nullptr, bf16 = nullptr, f32 = nullptr;
    bool reads_bf16 = false;  ///< fp8, fp4 and bf16 read x_bf16 instead of x
};

struct RowKernels {
    /// out = x · rsqrt(mean(x²) + eps) · weight
    void (*rms_norm)(const uint16_t* x, const float* weight, float eps, int64_t n, uint16_t* out) = nullptr;
    /// bf16 row → fp32 row
    void (*widen)(const uint16_t* x, int64_t n, float* out) = nullptr;
    /// fp32 row → bf16 row
    void (*narrow)(const float* x, int64_t n, uint16_t* out) = nullptr;
    /// q8 and q4m fake quantization of a row (k % 32 == 0); out may be x
    void (*quant_q8)(const uint16_t* x, int64_t k, uint16_t* out) = nullptr;
    void (*quant_q4m)(const uint16_t* x, int64_t k, uint16_t* out) = nullptr;
    /// packed q8 row: k codes, then k/32 scale bytes
    void (*pack_q8)(const uint16_t* x, int64_t k, uint8_t* row) = nullptr;
    /// rotates adjacent pairs of d values; cs = rd/2 pairs (cos, sin)
    void (*rope)(uint16_t* x, const float* cs, int64_t rd, float sign) = nullptr;
    /// out = f(gate, up) · w of the feed-forward, bf16 in fp32 form; n % 16 == 0
    void (*swiglu)(const float* gate, const float* up, float w, float limit, int64_t n, float* out) = nullptr;
};

struct MhcKernels {
    /// m[o] = Σ fn[o, i] · x[i], and the sum of squares of x; n % 16 == 0
    void (*mix_sums)(const uint16_t* x, const float* fn, int64_t n, int num_out, float* m, float* squares) = nullptr;
    /// out = Σ_s pre[s] · x[s, :]
    void (*collapse)(const uint16_t* x, const float* pre, int hc, int64_t d, uint16_t* out) = nullptr;
    /// out[k] = post[k] · y + Σ_j comb[j, k] · x[j]
    void (*expand)(const uint16_t* y, const uint16_t* x, const float* post, const float* comb, int hc,
                   int64_t d, uint16_t* out) = nullptr;
    /// The three sums of one Engram stream: Σ x², Σ key², Σ x · (q · k) · key
    void (*engram_sums)(const uint16_t* x, const uint16_t* key, const float* q, const float* k, int64_t d,
                        float* sums) = nullptr;
    /// x += gate · value
    void (*add_scaled)(uint16_t* x, const uint16_t* value, float gate, int64_t d) = nullptr;
};

/// One query row over its key list.
struct AttentionArgs {
    const uint16_t* q = nullptr;            ///< [heads, dh] bf16
    int64_t heads = 0, dh = 0;
    const uint8_t* const* rows = nullptr;   ///< packed rows in list order: window rows, then entries
    int64_t num_window = 0, num_rows = 0;
    const float* sink = nullptr;            ///< [heads]
    float scale = 0;
    float* scratch = nullptr;               ///< attention_scratch_floats(heads, dh)
    uint16_t* out = nullptr;                ///< [heads, dh] bf16
};
constexpr int kKeyBlock = 64;  ///< list entries of one online-softmax block
constexpr int64_t attention_scratch_floats(int64_t heads, int64_t dh) {
    return kKeyBlock * dh + 2 * heads * dh + heads * (kKeyBlock + 2) + 256;
}

struct AttentionKernels {
    void (*attend)(const AttentionArgs&) = nullptr;
};

struct IndexKernels {
    /// 32 packed index keys → an kF32 panel [di, 32]; keys[i] may be null (zeros)
    void (*widen_keys)(const uint8_t* const* keys, int64_t di, float* panel) = nullptr;
    /// scores[j] = Σ_h hw[h] · relu(dots[h, j]) for j < 32, ascending h
    void (*head_sum)(const float* dots, const float* hw, int64_t heads, float* scores) = nullptr;
};

struct Kernels {
    LinearKernels linear;
    RowKernels rows;
    MhcKernels mhc;
    AttentionKernels attention;
    IndexKernels index;
};

// One definition per level and op folder; the level's table is put together in kernel_tables.cpp.
#define DI_DECLARE_KERNELS(level)                   \
    extern const LinearKernels kLinear_##level;     \
    extern const RowKernels kRows_##level;          \
    extern const MhcKernels kMhc_##level;           \
    extern const AttentionKernels kAttention_##level; \
    extern const IndexKernels kIndex_##level;
DI_DECLARE_KERNELS(baseline)
DI_DECLARE_KERNELS(avx2)
DI_DECLARE_KERNELS(avx512)
extern const LinearKernels kLinear_amx;
extern const AttentionKernels kAttention_amx;
#undef DI_DECLARE_KERNELS

}  // namespace deepinfer::cpu
