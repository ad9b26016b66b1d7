// The kernels of one ISA level, as plain functions over pointers.
//
// The op wrappers (src/ops/*/*_cpu.cpp) check shapes, split work over threads and call these; the
// ISA files (*_cpu.cpp, *_avx2.cpp, *_avx512.cpp, *_amx.cpp) fill them in from the sources in this
// folder. Only plain structs here: a function defined in this header would be compiled with ISA
// flags and could be picked by the linker for the baseline.
#pragma once

#include <cstdint>

namespace deepinfer::cpu {

/// Rows of a weight that one packed panel holds, and outputs that one call of a GEMM kernel makes.
constexpr int kPanelRows = 32;
constexpr int kBlockK = 32;  ///< k values that share a scale; the partial sums of a GEMM end here
/// Deepest k of a packed weight (the AMX level widens a panel of it to 1 MiB); the released model
/// has 15360 (drafting's main_proj).
constexpr int64_t kMaxPanelK = 16384;

/// How a packed panel stores its 32 weight rows (pack.h writes them).
///
///   kFp8    k/32 E8M0 bytes, then k × [32 codes]
///   kFp4    k/32 × [32 E8M0 bytes], then k/8 × [32 words of 8 nibbles]; nibble 4t of a word holds
///           k = 2t, nibble 16 + 4t holds k = 2t + 1 (one shift serves a bf16 pair)
///   kBf16   two halves of 16 rows, each k/2 × [16 pairs (k, k + 1)]
///   kF32    k × [32 floats]
///   kFp8Pair  two halves of 16 rows, each k/4 × [64 codes in the order of pack.cpp]; then k/32
///             E8M0, then k/32 marks of blocks with a zero or subnormal code (AMX)
///   kFp8Quad  k/32 E8M0, then k/32 × two halves of 16 rows × 8 × [64 codes: four rows of four k in
///             each quarter, the first pair of all four rows before the second] (AVX-512 BF16)
///   kFp8Words k/32 E8M0 and k/32 marks of blocks with a zero or subnormal code, then k × [16 words
///             of two codes: word 2i rows i and 16 + i, word 2i + 1 rows 8 + i and 24 + i] (AVX2)
///   kFp4Bytes k/32 × [32 E8M0 bytes], then k/2 × [32 bytes in the order of pack.cpp: k in the low
///             nibble, k + 1 in the high one] (AVX2)
///
/// Where scales come first they fill whole cache lines: whoever reads ahead of a panel's end meets
/// the next one's scales before its codes, so both are there when it starts.
enum class PanelFormat : uint8_t {
    kFp8,
    kFp4,
    kBf16,
    kF32,
    kFp8Pair,
    kFp8Quad,
    kFp8Words,
    kFp4Bytes
};

/// Bytes of the scales in front of a panel's codes, `per_block` for every 32 k.
constexpr int64_t scale_bytes(int64_t k, int64_t per_block) {
    return (k / kBlockK * per_block + 63) / 64 * 64;
}

/// c[m, 0..31] = Σ_k x[m, k] · panel[k, 0..31] for num_rows rows.
///
/// One order for every row count: blocks of 32 k ascending; inside a block k ascending from zero,
/// then the block's partial sum is added to c.
struct GemmArgs {
    const float* x = nullptr;          ///< [num_rows, k] fp32 (FMA levels)
    const uint16_t* x_bf16 = nullptr;  ///< the same as bf16 (AVX-512 BF16 and AMX)
    int64_t ldx = 0;                   ///< elements between rows of x or x_bf16
    int64_t step = kBlockK;            ///< elements from a row's k block to its next one
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
    void (*rms_norm)(const uint16_t* x, const float* weight, float eps, int64_t n, uint16_t* out) =
        nullptr;
    /// bf16 row → fp32 row
    void (*widen)(const uint16_t* x, int64_t n, float* out) = nullptr;
    /// fp32 row → bf16 row
    void (*narrow)(const float* x, int64_t n, uint16_t* out) = nullptr;
    /// q8 and q4m fake quantization of a row (k % 32 == 0); out may be x
    void (*quant_q8)(const uint16_t* x, int64_t k, uint16_t* out) = nullptr;
    void (*quant_q4m)(const uint16_t* x, int64_t k, uint16_t* out) = nullptr;
    /// packed cache rows (tensor/quant_block.h): q8 codes and scales, q4m and q4n nibbles and
    /// scales
    void (*pack_q8)(const uint16_t* x, int64_t k, uint8_t* row) = nullptr;
    void (*pack_q4m)(const uint16_t* x, int64_t k, uint8_t* row) = nullptr;
    void (*pack_q4n)(const uint16_t* x, int64_t k, uint8_t* row) = nullptr;
    /// rotates adjacent pairs of d values; cs = rd/2 pairs (cos, sin)
    void (*rope)(uint16_t* x, const float* cs, int64_t rd, float sign) = nullptr;
    /// bf16(silu(min(g, limit)) · clamp(up) · w); gate and up are rounded to bf16 first; n % 16 ==
    /// 0
    void (*swiglu)(const float* gate,
                   const float* up,
                   float w,
                   float limit,
                   int64_t n,
                   uint16_t* out) = nullptr;
};

constexpr int kMixRows = 4;  ///< rows that share one pass over fn

struct MhcKernels {
    /// m[r, o] = Σ fn[o, i] · x[r, i] and squares[r] = Σ x[r, i]² for up to kMixRows rows; n % 16
    /// == 0; wide is scratch for num_rows · n floats
    void (*mix_sums)(const uint16_t* x,
                     int64_t ldx,
                     int num_rows,
                     const float* fn,
                     int64_t n,
                     int num_out,
                     float* wide,
                     float* m,
                     float* squares) = nullptr;
    /// out = Σ_s pre[s] · x[s, :]
    void (*collapse)(const uint16_t* x, const float* pre, int hc, int64_t d, uint16_t* out) =
        nullptr;
    /// out[k] = post[k] · y + Σ_j comb[j, k] · x[j]
    void (*expand)(const uint16_t* y,
                   const uint16_t* x,
                   const float* post,
                   const float* comb,
                   int hc,
                   int64_t d,
                   uint16_t* out) = nullptr;
    /// The three sums of one Engram stream: Σ x², Σ key², Σ x · (q · k) · key
    void (*engram_sums)(const uint16_t* x,
                        const uint16_t* key,
                        const float* q,
                        const float* k,
                        int64_t d,
                        float* sums) = nullptr;
    /// x += gate · value
    void (*add_scaled)(uint16_t* x, const uint16_t* value, float gate, int64_t d) = nullptr;
    /// out = Σ_i rows[i], fp32 in ascending i
    void (*sum_rows)(const uint16_t* const* rows, int64_t n, int64_t d, uint16_t* out) = nullptr;
};

/// One query row over up to kKeyBlock keys of its list.
struct AttentionArgs {
    const uint16_t* q = nullptr;  ///< [heads, dh] bf16
    int64_t heads = 0, dh = 0;
    const uint8_t* const* keys =
        nullptr;           ///< widened keys in list order (widen_window, widen_entry)
    int64_t num_keys = 0;  ///< 1 .. kKeyBlock
    float scale = 0;
};
constexpr int kKeyBlock = 64;  ///< list entries of one softmax block
/// Floats of a block's result or of a row's state: maxima [heads], sums [heads], values [heads, dh]
/// (dims in the level's own order).
constexpr int64_t attention_part_floats(int64_t heads, int64_t dh) {
    return heads * (dh + 2);
}
constexpr int64_t attention_scratch_floats(int64_t heads, int64_t dh) {
    return heads * (dh + 4 * kKeyBlock);
}

/// Consecutive rows of one sequence that share their keys: windows on one run of positions, entry
/// lists that are prefixes of one list.
struct AttentionGroup {
    const uint16_t* q = nullptr;  ///< row r at q + r · ld_q: [heads, dh] bf16
    int64_t ld_q = 0;
    int64_t heads = 0, dh = 0;
    int64_t num_rows = 0;             ///< 1 .. kGroupRows
    int64_t first_position = 0;       ///< of row 0
    const int64_t* lowest = nullptr;  ///< [num_rows] first window position of each row, ascending
    const uint8_t* const* window =
        nullptr;  ///< packed rows of positions lowest[0] .. first_position + num_rows − 1
    const uint8_t* const* entries = nullptr;  ///< packed entries of the longest list
    const int64_t* num_entries = nullptr;     ///< [num_rows] prefix of `entries` that a row sees
    const float* sink = nullptr;              ///< [heads]
    float scale = 0;
    uint8_t* scratch = nullptr;  ///< group_scratch_bytes(heads, dh), 64-byte aligned
    uint16_t* out = nullptr;     ///< row r at out + r · ld_out
    int64_t ld_out = 0;
};
constexpr int kGroupRows = 32;
constexpr int64_t group_scratch_bytes(int64_t heads, int64_t dh) {
    const int64_t cols = (kGroupRows * heads + 15) / 16 * 16;
    return 2 * kKeyBlock * dh * 17 / 8 + cols * dh * 2 + cols * (dh + 2) * 4 + 65536;
}

struct AttentionKernels {
    /// A packed window row or entry → dh values of key_value_bytes each, 64-byte aligned
    void (*widen_window)(const uint8_t* row, int64_t dh, uint8_t* key) = nullptr;
    void (*widen_entry)(const uint8_t* row, int64_t dh, uint8_t* key) = nullptr;
    int key_value_bytes = 0;
    /// part = one block of the list alone
    void (*attend_keys)(const AttentionArgs& a, float* scratch, float* part) = nullptr;
    /// state ⊕= part. A new state is (sink, 1, 0): the sink is an entry without a value.
    void (*merge_block)(float* state, const float* part, int64_t heads, int64_t dh) = nullptr;
    /// out [heads, dh] bf16 = values / sums
    void (*finish_row)(const float* state, int64_t heads, int64_t dh, uint16_t* out) = nullptr;

    // AMX level only (then those above but merge_block are not used): rows that share their keys.
    /// All rows of a group, from keys to out.
    void (*attend_group)(const AttentionGroup& g) = nullptr;
    /// Blocks of a group of one row, and one of them alone (for merge_block).
    int64_t (*group_blocks)(const AttentionGroup& g) = nullptr;
    void (*group_block)(const AttentionGroup& g, int64_t block, float* part) = nullptr;
    void (*finish_group)(const AttentionGroup& g, const float* state) = nullptr;
};

struct IndexKernels {
    /// The same as a kBf16 panel (values are exact), where linear.reads_bf16
    void (*widen_keys_bf16)(const uint8_t* const* keys, int64_t di, uint16_t* panel) = nullptr;
    /// 32 packed index keys → an kF32 panel [di, 32]; keys[i] may be null (zeros)
    void (*widen_keys)(const uint8_t* const* keys, int64_t di, float* panel) = nullptr;
    /// scores[j] = Σ_h hw[h] · relu(dots[h, j]) for j < 32, ascending h
    void (*head_sum)(const float* dots, const float* hw, int64_t heads, float* scores) = nullptr;
};

/// Probabilities of one run of keys for a block of query rows, and the running softmax state.
struct VitSoftmaxArgs {
    float* scores = nullptr;  ///< [panels of 32 keys][num_rows][32]; clobbered beyond num_keys
    int64_t num_rows = 0, num_keys = 0;
    float scale = 0;
    float* top = nullptr;         ///< [num_rows] running maximum, −∞ at first
    float* sum = nullptr;         ///< [num_rows] running sum, 0 at first
    float* correction = nullptr;  ///< [num_rows] out: what earlier sums are to be multiplied by
    float* probs = nullptr;  ///< out: [num_rows, ld_probs], zeros beyond num_keys up to a panel
    int64_t ld_probs = 0;
};

struct VitKernels {
    void (*softmax_block)(const VitSoftmaxArgs& a) = nullptr;
    /// acc[r, 0..32) = acc · correction[r] + c[r, 0..32)
    void (*accumulate)(const float* c,
                       int64_t num_rows,
                       const float* correction,
                       float* acc,
                       int64_t ld_acc) = nullptr;
    /// out = bf16(acc / sum)
    void (*finish_row)(const float* acc, float sum, int64_t n, uint16_t* out) = nullptr;
    /// out = bf16(bf16(silu(gate)) · up); n % 16 == 0
    void (*swiglu)(const uint16_t* gate, const uint16_t* up, int64_t n, uint16_t* out) = nullptr;
    /// x = bf16(x + y); n % 16 == 0
    void (*add)(uint16_t* x, const uint16_t* y, int64_t n) = nullptr;
    /// half-split rotation of all heads of a row; cos_sin = d/2 pairs
    void (*rope)(uint16_t* x, const float* cos_sin, int64_t heads, int64_t d) = nullptr;
};

/// What a core can do at most, for measurements.
struct RoofKernels {
    /// Products in registers; returns the flops done in about a millisecond.
    double (*dot)() = nullptr;
    /// Reads [p, p + bytes), a multiple of 4096; returns something that depends on it.
    float (*read)(const uint8_t* p, int64_t bytes) = nullptr;
};

struct Kernels {
    LinearKernels linear;
    RowKernels rows;
    MhcKernels mhc;
    AttentionKernels attention;
    IndexKernels index;
    VitKernels vit;
    RoofKernels roof;
};

// One definition per level and op folder; the level's table is put together in kernel_tables.cpp.
#define DI_DECLARE_KERNELS(level)                     \
    extern const LinearKernels kLinear_##level;       \
    extern const RowKernels kRows_##level;            \
    extern const MhcKernels kMhc_##level;             \
    extern const AttentionKernels kAttention_##level; \
    extern const IndexKernels kIndex_##level;         \
    extern const VitKernels kVit_##level;             \
    extern const RoofKernels kRoof_##level;
DI_DECLARE_KERNELS(baseline)
DI_DECLARE_KERNELS(avx2)
DI_DECLARE_KERNELS(avx512)
extern const LinearKernels kLinear_avx512bf16;
extern const AttentionKernels kAttention_avx512bf16;
extern const RoofKernels kRoof_avx512bf16;
extern const LinearKernels kLinear_amx;
extern const RoofKernels kRoof_amx;
extern const AttentionKernels kAttention_amx;

/// Key of the tile configuration that this thread has loaded (kernels/amx_tiles.h); −1 at first.
int& amx_config_key();
#undef DI_DECLARE_KERNELS

}  // namespace deepinfer::cpu
