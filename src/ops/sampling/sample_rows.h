// Token choice where the logits are: greedy and plain temperature rows need nothing but their own
// logits, so that only a token per row travels to the host. Rows with edits, masks, truncation or
// log-probabilities are the sampler's (sampler/sampler.h).
#pragma once

#include "base/philox.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// One row's wish; 32 bytes, laid out the same on host and device.
struct SampleRequest {
    int32_t row = 0;             ///< of the logits
    uint32_t greedy = 0;         ///< 1: the largest logit, no noise
    double inv_temperature = 1;  ///< 1 / temperature, for greedy rows 1
    uint64_t seed = 0;           ///< NoiseKey (base/philox.h), stream kTarget
    uint32_t position = 0;       ///< of the token to be generated
    uint32_t sub_sequence = 0;
};
static_assert(sizeof(SampleRequest) == 32);

struct SampleChoice {
    int32_t token = -1;     ///< -1: no logit above -inf
    int32_t nan_count = 0;  ///< NaN logits of the row (they count as -inf)
};

/// choices[i] = what Sampler::sample gives for a row without edits, masks and truncation
///
/// logits    [num_rows, vocab]     f32, any row stride
/// requests  [n, 32] u8            SampleRequest each
/// choices   [n, 8] u8             SampleChoice each
///
///   greedy, or +inf among the logits   the largest logit, the smallest id on a tie
///   else                               argmax of (l - max) · inv_temperature + gumbel_noise(key,
///   id)
///                                      over l > -inf, the smallest id on a tie
///
/// Numerics  exact: every implementation gives the same bits (ops/sampling/sampling_math.h).
/// Edges     n == 0 returns at once. A row never depends on another.
/// Cost      reads the row twice.
/// Source    engine spec 5.4, 6.2.
using SampleRowsOp = void (*)(Stream& stream,
                              const Tensor& logits,
                              const Tensor& requests,
                              Tensor choices);

void sample_rows_ref(Stream& stream, const Tensor& logits, const Tensor& requests, Tensor choices);

}  // namespace deepinfer
