// The parts that both head_dim 512 attention kernels share: where the listed rows are, bringing
// them in, widening them.
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

/// raw → bf16 keys; rows past the end become zeros (a stale NaN would survive a zero probability).
/// `offset(row, col)` is the byte offset of a value in `keys`; eight neighbours from a multiple of
/// eight stand together.
template <typename Offset>
__device__ __forceinline__ void widen_rows(
    const KeyList& list, int n, int first, const uint8_t* raw, uint8_t* keys, Offset offset) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 2
    for (int j = warp; j < kAttentionBlock; j += kAttention512Warps) {
        const uint8_t* src = raw + j * kWindowBytes;
        uint32_t pairs[8];  // 16 dims from lane · 16
        if (first + j >= n) {
#pragma unroll
            for (int i = 0; i < 8; ++i) pairs[i] = 0;
        } else if (first + j < list.window) {
            const uint4 codes = *reinterpret_cast<const uint4*>(src + lane * 16);
            const uint32_t e = src[kAttentionDim + lane / 2];
            const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
            const uint32_t factor = e4m3_factor(max(min(e, kMaxE4m3Scale + 8), 8u) - 8);
            uint32_t nan = e == 255 ? 0xFFFFFFFFu : 0u;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t odd = mul_bf16x2(e4m3_odd(w[i]), factor),
                               even = mul_bf16x2(e4m3_even(w[i]), factor);
                pairs[2 * i] = __byte_perm(even, odd, 0x5410);      // dims 4i, 4i + 1
                pairs[2 * i + 1] = __byte_perm(even, odd, 0x7632);  // dims 4i + 2, 4i + 3
                nan |= __vcmpeq4(w[i] & 0x7F7F7F7Fu, 0x7F7F7F7Fu);
            }
            if (e > kMaxE4m3Scale + 8 || nan != 0) {
                // Huge rows need a second power of two; a NaN anywhere makes the row's scores NaN,
                // as it must.
                const uint32_t rest =
                    nan != 0 ? 0x7FC07FC0u : bf16x2_power(127 + e - kMaxE4m3Scale - 8);
#pragma unroll
                for (int i = 0; i < 8; ++i) pairs[i] = nan != 0 ? rest : mul_bf16x2(pairs[i], rest);
            }
        } else {
            const uint2 codes = *reinterpret_cast<const uint2*>(src + lane * 8);
            // The E4M3 scale times 2^118 in both halves (two exact steps), which with the 2^-8 of
            // the keys makes 2^126.
            const uint32_t byte = src[kAttentionDim / 2 + lane];
            const uint32_t code =
                byte == 0x7F ? 0x7FC07FC0u : (byte & 0x7Fu) << 4 | (byte & 0x7Fu) << 20;
            const uint32_t factor =
                mul_bf16x2(mul_bf16x2(code, bf16x2_power(127 + 120)), bf16x2_power(127 + 118));
            const uint32_t w[2] = {codes.x, codes.y};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t n0 = mul_bf16x2(e2m1_nibbles<0>(w[i]), factor),
                               n1 = mul_bf16x2(e2m1_nibbles<1>(w[i]), factor);
                const uint32_t n2 = mul_bf16x2(e2m1_nibbles<2>(w[i]), factor),
                               n3 = mul_bf16x2(e2m1_nibbles<3>(w[i]), factor);
                // Half h of nk is dim 8i + 4h + k.
                pairs[4 * i] = __byte_perm(n0, n1, 0x5410);
                pairs[4 * i + 1] = __byte_perm(n2, n3, 0x5410);
                pairs[4 * i + 2] = __byte_perm(n0, n1, 0x7632);
                pairs[4 * i + 3] = __byte_perm(n2, n3, 0x7632);
            }
        }
        *reinterpret_cast<uint4*>(keys + offset(j, lane * 16)) =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        *reinterpret_cast<uint4*>(keys + offset(j, lane * 16 + 8)) =
            make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    }
}

/// Many rows: 64 heads a block on wgmma (sparse_attention_512_sm90.cu). The same bits as the kernel
/// for few rows.
void sparse_attention_512_wide(Stream& stream, const AttentionParams& p);

}  // namespace deepinfer::cuda
