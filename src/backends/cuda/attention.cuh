// What the sparse attention kernels share: parameters and the key list of a row.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/views.cuh"
#include "device/stream.h"

namespace deepinfer::cuda {

constexpr int kAttentionBlock = 64;  ///< list entries of one online-softmax step

struct AttentionParams {
    const uint16_t* q;
    int64_t q_stride;
    BatchPointers batch;
    const uint8_t* step_rows;
    int64_t step_stride;
    const uint8_t* ring;
    int64_t ring_slot_stride, ring_row_stride;
    int ring_len;
    const uint8_t* pool;
    int64_t pool_stride;
    int entries_per_block;
    int window;
    const int32_t* lists;
    int64_t list_stride;
    int list_len;
    const float* sink;
    float scale;
    uint16_t* out;
    int64_t out_stride;
    int num_rows, heads, dh;
    bool draft;  ///< draft_attention: the rows of a block share one list
};

/// The key list of row t: `window` window rows by position, then the selected entries.
struct KeyList {
    int seq, position, lowest, window;

    __device__ KeyList(const AttentionParams& p, int t) {
        seq = p.batch.row_seq[t];
        position = p.batch.positions[t];
        if (p.draft) {
            // Committed rows below the block's start, then the whole block in row order.
            const int start = p.batch.seq_start[seq];
            lowest = min(start, max(max(0, p.batch.window_floor[seq]), start - p.window));
            window = start - lowest + p.batch.seq_rows[seq + 1] - p.batch.seq_rows[seq];
            return;
        }
        lowest = max(max(0, p.batch.window_floor[seq]), position - p.window + 1);
        window = position - lowest + 1;
    }

    /// Window rows plus entries before the first -1. Every thread of the block calls it.
    __device__ int size_of_block(const AttentionParams& p, int t) const {
        int valid = 0;
        for (int first = 0; first < p.list_len; first += static_cast<int>(blockDim.x)) {
            const int i = first + static_cast<int>(threadIdx.x);
            valid += __syncthreads_count(i < p.list_len && p.lists[t * p.list_stride + i] >= 0);
        }
        return window + valid;
    }

    /// Packed bytes of list entry j.
    __device__ const uint8_t* row(const AttentionParams& p, int t, int j) const {
        if (j >= window) {
            const int entry = p.lists[t * p.list_stride + j - window];
            const int64_t block =
                p.batch.block_table[seq * p.batch.block_stride + entry / p.entries_per_block];
            return p.pool +
                   (block * p.entries_per_block + entry % p.entries_per_block) * p.pool_stride;
        }
        return window_row(p, j);
    }
    /// The same of j < window.
    __device__ const uint8_t* window_row(const AttentionParams& p, int j) const {
        const int pos = lowest + j, start = p.batch.seq_start[seq];
        if (pos >= start)
            return p.step_rows + (p.batch.seq_rows[seq] + pos - start) * p.step_stride;
        return p.ring + p.batch.seq_slot[seq] * p.ring_slot_stride +
               pos % p.ring_len * p.ring_row_stride;
    }
};

/// head_dim 512, every row at a 16-byte address.
bool sparse_attention_512_takes(const AttentionParams& p);
void sparse_attention_512(Stream& stream, const AttentionParams& p);

}  // namespace deepinfer::cuda
