// The parts that the head_dim 512 attention kernels share: where the listed rows are, bringing them
// in, widening them, and the rule of the sums.
//
// The rule: the list is cut into blocks of 64 entries. A block is a world of its own: its largest
// score m, its weights exp(s - m), their sum l, and its values, summed from zero. Blocks are merged
// in list order (merge_block). So it does not matter who computes a block, and a single row can be
// spread over the chip.
//
// Keys are kept times 2^-8, so that one multiply widens them (an E4M3 scale times 2^126 would not
// be a bf16 number); scores and output undo it exactly.
#pragma once

#include "backends/cuda/attention.cuh"
#include "backends/cuda/mma.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/widen.cuh"

namespace deepinfer::cuda {

constexpr int kAttention512Threads = 512;
constexpr int kAttention512Warps = kAttention512Threads / 32;
constexpr int kAttentionDim = 512;
constexpr int kWindowBytes = 528, kEntryBytes = 288;
constexpr int kTable = 640;  ///< the released 128 + 512 entries; longer lists refill the table

/// Weights of a block for one head. Four neighbouring lanes hold its 64 scaled scores: lane t those
/// of entries 8 j + 2 t and 8 j + 2 t + 1 (as the tensor cores leave them). In: scores, -inf past
/// the end. Out: weights. Returns their sum l, and m.
__device__ __forceinline__ float block_weights(float (&w)[16], float& m) {
    m = w[0];
#pragma unroll
    for (int i = 1; i < 16; ++i) m = fmaxf(m, w[i]);
    m = group_max<4>(m);
    const float base = m == -INFINITY ? 0.0f : m;  // nothing but NaN and -inf
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        w[2 * j] = __expf(w[2 * j] - base);
        w[2 * j + 1] = __expf(w[2 * j + 1] - base);
        sum += w[2 * j] + w[2 * j + 1];
    }
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
}

/// Takes a block into the running maximum and denominator of a head; its values then enter as
/// merge_value(value so far, block's value).
struct BlockFactors {
    float old, block;
};
__device__ __forceinline__ BlockFactors merge_block(float m, float l, float& top, float& sum) {
    const float new_top = fmaxf(top, m);
    const BlockFactors f{__expf(top - new_top), __expf(m - new_top)};
    sum = __fmaf_rn(l, f.block, __fmul_rn(sum, f.old));
    top = new_top;
    return f;
}
__device__ __forceinline__ float merge_value(float value, float block, const BlockFactors& f) {
    return __fmaf_rn(block, f.block, __fmul_rn(value, f.old));
}
/// What the finished values are multiplied by: 1 / denominator, without the keys' 2^-8.
__device__ __forceinline__ float output_factor(float sum) {
    return 0x1p8f / sum;
}
/// A weight pair as two bf16 pairs (value and remainder): 16 bits of each weight.
__device__ __forceinline__ void split_weights(float a, float b, uint32_t& hi, uint32_t& lo) {
    hi = cvt_bf16x2(a, b);
    lo = cvt_bf16x2(a - bf16_value(static_cast<uint16_t>(hi)),
                    b - bf16_value(static_cast<uint16_t>(hi >> 16)));
}

/// Looks up where list entries first .. first + kTable are: a chain of dependent loads that must
/// not stand in every block's way.
__device__ __forceinline__ void look_up_rows(
    const AttentionParams& p, const KeyList& list, int t, int n, int first, const uint8_t** table) {
    for (int i = static_cast<int>(threadIdx.x); i < kTable && first + i < n;
         i += kAttention512Threads)
        table[i] = list.row(p, t, first + i);
}

/// Copies the packed rows of block `first` to `raw`; rows past the end are not touched.
__device__ __forceinline__ void fetch_rows(
    const KeyList& list, int n, int first, const uint8_t* const* table, uint8_t* raw) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    constexpr int kRows = kAttentionBlock / kAttention512Warps;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const int j = warp * kRows + r;
        if (first + j >= n) break;
        const uint8_t* src = table[first % kTable + j];
        const uint32_t dst = shared_address(raw + j * kWindowBytes);
        const int bytes = first + j < list.window ? kWindowBytes : kEntryBytes;
        if (lane * 16 < bytes) cp_async_16(dst + lane * 16, src + lane * 16);
        if (bytes > 512 && lane == 0) cp_async_16(dst + 512, src + 512);
    }
}

/// One packed row as a warp's lane holds it: dims 16 · lane .. + 15 and their scale byte.
struct PackedRow {
    uint4 codes;  ///< FP8: 16 codes. FP4: x and y.
    uint32_t scale;
};
__device__ __forceinline__ PackedRow load_row(const uint8_t* src, bool window, int lane) {
    PackedRow r;
    if (window) {
        r.codes = *reinterpret_cast<const uint4*>(src + lane * 16);
        r.scale = src[kAttentionDim + lane / 2];
    } else {
        const uint2 w = *reinterpret_cast<const uint2*>(src + lane * 8);
        r.codes = make_uint4(w.x, w.y, 0, 0);
        r.scale = src[kAttentionDim / 2 + lane];
    }
    return r;
}

/// 16 dims of a window row with scale byte e as bf16 pairs.
__device__ __forceinline__ void widen_window(const uint4& codes, uint32_t e, uint32_t (&pairs)[8]) {
    const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
    const uint32_t factor = e4m3_factor(max(min(e, kMaxE4m3Scale + 8), 8u) - 8);
    uint32_t nan = e == 255 ? 0x80u : 0u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t odd = mul_bf16x2(e4m3_odd(w[i]), factor),
                       even = mul_bf16x2(e4m3_even(w[i]), factor);
        pairs[2 * i] = __byte_perm(even, odd, 0x5410);      // dims 4i, 4i + 1
        pairs[2 * i + 1] = __byte_perm(even, odd, 0x7632);  // dims 4i + 2, 4i + 3
        nan |= (w[i] & 0x7F7F7F7Fu) + 0x01010101u;          // bit 7 of a byte: it was 0x7F
    }
    nan &= 0x80808080u;
    if (e > kMaxE4m3Scale + 8 || nan != 0) {
        // Huge rows need a second power of two; a NaN anywhere makes the row's scores NaN, as it
        // must.
        const uint32_t rest = nan != 0 ? 0x7FC07FC0u : bf16x2_power(127 + e - kMaxE4m3Scale - 8);
#pragma unroll
        for (int i = 0; i < 8; ++i) pairs[i] = nan != 0 ? rest : mul_bf16x2(pairs[i], rest);
    }
}
/// The factor of 16 dims of an entry: their E4M3 scale times 2^118 in both halves (two exact
/// steps), which with the 2^-8 of the keys makes 2^126.
__device__ __forceinline__ uint32_t entry_factor(uint32_t scale) {
    const uint32_t magnitude = scale & 0x7Fu;
    const uint32_t code = scale == 0x7F ? 0x7FC07FC0u : magnitude << 4 | magnitude << 20;
    return mul_bf16x2(mul_bf16x2(code, bf16x2_power(127 + 120)), bf16x2_power(127 + 118));
}
/// Eight FP4 codes as bf16 pairs.
__device__ __forceinline__ void widen_entry(uint32_t w, uint32_t factor, uint32_t (&pairs)[4]) {
    const uint32_t n0 = mul_bf16x2(e2m1_nibbles<0>(w), factor),
                   n1 = mul_bf16x2(e2m1_nibbles<1>(w), factor),
                   n2 = mul_bf16x2(e2m1_nibbles<2>(w), factor),
                   n3 = mul_bf16x2(e2m1_nibbles<3>(w), factor);
    // Half h of nk is dim 4h + k.
    pairs[0] = __byte_perm(n0, n1, 0x5410);
    pairs[1] = __byte_perm(n2, n3, 0x5410);
    pairs[2] = __byte_perm(n0, n1, 0x7632);
    pairs[3] = __byte_perm(n2, n3, 0x7632);
}

/// The lane's 16 dims as bf16 pairs.
__device__ __forceinline__ void widen_row(const PackedRow& r, bool window, uint32_t (&pairs)[8]) {
    if (window) return widen_window(r.codes, r.scale, pairs);
    const uint32_t factor = entry_factor(r.scale);
    uint32_t half[4];
    widen_entry(r.codes.x, factor, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = half[i];
    widen_entry(r.codes.y, factor, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[4 + i] = half[i];
}

/// raw → bf16 keys; rows past the end become zeros (a stale NaN would survive a zero probability).
/// `offset(row, col)` is the byte offset of a value in `keys`; eight neighbours from a multiple of
/// eight stand together.
template <typename Offset>
__device__ __forceinline__ void widen_rows(
    const KeyList& list, int n, int first, const uint8_t* raw, uint8_t* keys, Offset offset) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 2
    for (int j = warp; j < kAttentionBlock; j += kAttention512Warps) {
        uint32_t pairs[8] = {};
        if (first + j < n) {
            const bool window = first + j < list.window;
            widen_row(load_row(raw + j * kWindowBytes, window, lane), window, pairs);
        }
        *reinterpret_cast<uint4*>(keys + offset(j, lane * 16)) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        *reinterpret_cast<uint4*>(keys + offset(j, lane * 16 + 8)) =
            make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    }
}

/// Blocks computed apart (few rows): values [rows][blocks][heads][512] and m, l
/// [rows][blocks][heads][2], in the stream's scratch.
struct SplitBlocks {
    float* values;
    float2* sums;
    int blocks;
};

/// 64 heads a block on wgmma (sparse_attention_512_sm90.cu). The same bits as the other kernel.
void sparse_attention_512_wide(Stream& stream, const AttentionParams& p);
/// One list block a thread block; merge_blocks() follows.
void sparse_attention_512_split(Stream& stream, const AttentionParams& p, const SplitBlocks& split);

}  // namespace deepinfer::cuda
