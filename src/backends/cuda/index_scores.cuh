// What the indexer's score kernels share.
#pragma once

#include "backends/cuda/views.cuh"
#include "device/stream.h"

namespace deepinfer::cuda {

struct ScoreParams {
    const uint16_t* q;
    int64_t q_stride;
    const uint16_t* hw;
    int64_t hw_stride;
    BatchPointers batch;
    const uint8_t* pool;
    int64_t pool_stride;
    int entries_per_block;
    int ratio;
    const int32_t* candidates;
    int64_t candidate_stride;
    int num_candidates;
    int block_size;
    float* scores;
    int64_t score_stride;
    int64_t n;
    int num_rows;
    int heads;
    int heads_padded;
    int di;
    int rows_per_block;
    bool words;      ///< keys start at 4-byte addresses
    bool q_aligned;  ///< query rows start at 16-byte addresses
};

/// 32 heads of 128 values, keys at 4-byte and queries at 16-byte addresses (indexer_128_cuda.cu).
bool index_scores_128_takes(const ScoreParams& p);
void index_scores_128(Stream& stream, ScoreParams p, int num_seqs);

}  // namespace deepinfer::cuda
