// Lightning indexer: scores of compressed entries, candidate blocks, top-k selection.
#pragma once

#include "device/stream.h"
#include "ops/batch_view.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// Where the index keys of one kv source are.
struct IndexCache {
    Tensor key_pool;  ///< [num_entries, index_key_bytes(di)] u8, any row stride
    int entries_per_block =
        0;          ///< entry j of a sequence is row block_table[j / epb] · epb + j % epb
    int ratio = 1;  ///< a row at position p sees entries j < (p + 1) / ratio
};

/// scores[t, j] = Σ_h hw[t, h] · relu(q[t, h, :] · key_j), −inf where j is not visible to row t or,
/// if candidates are given, outside the row's candidate blocks.
///
/// q           [rows, Hi, di]  bf16, rotated and q4m-rounded
/// hw          [rows, Hi]      bf16, scaled
/// candidates  [rows, C] i32   kept blocks of candidate_block_size entries, ascending, -1 padded;
/// or empty scores      [rows, n]       accumulator type; n >= visible entries of every row; all n
/// are written
///
/// Numerics  fp32 dot products (exact: q4m × q4m), head sum in fp32 in ascending h; fp64 exact
/// table. Source    model spec 3.7.
using IndexScoresOp = void (*)(Stream& stream,
                               const Tensor& q,
                               const Tensor& hw,
                               const BatchView& batch,
                               const IndexCache& cache,
                               const Tensor& candidates,
                               int candidate_block_size,
                               Tensor scores);

/// The best blocks of each row: block score = max over its entries, the block of the newest visible
/// entry always wins, blocks still at −inf are dropped, ties go to the smaller block.
///
/// scores [rows, n] accumulator type (before candidate masking);  positions [rows] i32
/// blocks [rows, C] i32: at most C blocks, ascending, -1 padded
/// Edges  a row without visible entries keeps none.
using CandidateBlocksOp = void (*)(Stream& stream,
                                   const Tensor& scores,
                                   const Tensor& positions,
                                   int ratio,
                                   int block_size,
                                   Tensor blocks);

/// The K best entries of each row by (score descending, position ascending); −inf and NaN are never
/// picked.
///
/// scores [rows, n] accumulator type;  lists [rows, K] i32: positions ascending, -1 padded
using TopkSelectOp = void (*)(Stream& stream, const Tensor& scores, Tensor lists);

template <typename Acc>
void index_scores_ref(Stream& stream,
                      const Tensor& q,
                      const Tensor& hw,
                      const BatchView& batch,
                      const IndexCache& cache,
                      const Tensor& candidates,
                      int candidate_block_size,
                      Tensor scores);
template <typename Acc>
void candidate_blocks_ref(Stream& stream,
                          const Tensor& scores,
                          const Tensor& positions,
                          int ratio,
                          int block_size,
                          Tensor blocks);
template <typename Acc>
void topk_select_ref(Stream& stream, const Tensor& scores, Tensor lists);

}  // namespace deepinfer
