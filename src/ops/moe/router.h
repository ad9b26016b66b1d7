// Router: scores, selection and weights of the routed experts.
#pragma once

#include "device/stream.h"
#include "ops/weight_matrix.h"
#include "tensor/tensor.h"

namespace deepinfer {

enum class ScoringFunc { kSqrtSoftplus, kSigmoid, kSoftmax };

/// scores[t, e] = f((u[t] · gate[e]) / temperature);  sqrtsoftplus(x) = sqrt(x > 20 ? x :
/// log1p(e^x))
///
/// u [T, D] bf16 (not quantized);  gate [E, D] BF16 or F32;  scores [T, E] accumulator type
/// Numerics  as linear with an accumulator output. Source: model spec 3.9.
using RouterScoresOp = void (*)(Stream& stream,
                                const Tensor& u,
                                const WeightMatrix& gate,
                                float temperature,
                                ScoringFunc func,
                                Tensor scores);

/// ids[t, :] = the k experts with the largest score + bias, ties to the smaller id, listed
/// ascending
///
/// bias, bias_vl [E] f32: bias_vl is used for rows with image_rows[t] != 0 (image_rows [T] u8 or
/// empty) ids [T, k] i32. NaN scores lose against everything; the ids are always k distinct
/// experts.
using RouterTopkOp = void (*)(Stream& stream,
                              const Tensor& scores,
                              const Tensor& bias,
                              const Tensor& bias_vl,
                              const Tensor& image_rows,
                              Tensor ids);

/// weights[t, i] = scores[t, ids[t, i]] / (Σ_i scores + 1e-20) · scale (no division if !normalize)
/// weights [T, k] accumulator type; the sum runs in ascending i.
using RouterWeightsOp = void (*)(Stream& stream,
                                 const Tensor& scores,
                                 const Tensor& ids,
                                 bool normalize,
                                 float scale,
                                 Tensor weights);

template <typename Acc>
void router_scores_ref(Stream& stream,
                       const Tensor& u,
                       const WeightMatrix& gate,
                       float temperature,
                       ScoringFunc func,
                       Tensor scores);
template <typename Acc>
void router_topk_ref(Stream& stream,
                     const Tensor& scores,
                     const Tensor& bias,
                     const Tensor& bias_vl,
                     const Tensor& image_rows,
                     Tensor ids);
template <typename Acc>
void router_weights_ref(Stream& stream,
                        const Tensor& scores,
                        const Tensor& ids,
                        bool normalize,
                        float scale,
                        Tensor weights);

}  // namespace deepinfer
