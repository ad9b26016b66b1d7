// The passes over a whole row of logits: the only parts of the sampler whose cost grows with the
// vocabulary. One source (row_kernels_impl.h) compiled per instruction set; all variants give the
// same bits, because sums are integers and every fp64 operation is fixed by sampling_math.h.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace deepinfer {

struct RowScan {
    float max = 0;          ///< largest logit, NaN left out; -inf if there is none
    int32_t argmax = -1;    ///< lowest id that has it; -1 if max is -inf
    int32_t nan_count = 0;  ///< logits that are NaN
};

struct RowChoice {
    int32_t token = -1;
    double score = 0;
};

struct RowKernels {
    const char* name;  ///< "baseline", "avx2", "avx512"

    /// Largest logit and NaN count of row [n].
    RowScan (*scan)(const float* row, int64_t n);

    /// Sum of weight40((l - max)/temperature) over the row; NaN and -inf count 0. max must be
    /// finite.
    uint64_t (*weight_sum)(const float* row, int64_t n, float max, double inv_temperature);

    /// Ids with l >= threshold, ascending, into out (room for n). Returns their number.
    int64_t (*collect)(const float* row, int64_t n, float threshold, int32_t* out);

    /// out[j] = weight40((row[ids[j]] - max)/temperature)
    void (*weights)(const float* row,
                    const int32_t* ids,
                    int64_t count,
                    float max,
                    double inv_temperature,
                    uint64_t* out);

    /// argmax of (l - max)/temperature + noise over all l > -inf, lowest id on a tie. `first` is
    /// any id with a good chance (the argmax): its score lets most tokens skip the logarithms. max
    /// finite.
    RowChoice (*gumbel_argmax)(const float* row,
                               int64_t n,
                               float max,
                               double inv_temperature,
                               const NoiseKey& key,
                               int32_t first);

    /// The same over `count` ids in any order.
    RowChoice (*gumbel_argmax_ids)(const float* row,
                                   const int32_t* ids,
                                   int64_t count,
                                   float max,
                                   double inv_temperature,
                                   const NoiseKey& key);
};

/// The best variant that this CPU runs. DEEPINFER-wide forcing goes through row_kernels_by_name().
const RowKernels& row_kernels();
/// A variant by name, or nullptr if it is unknown or this CPU lacks its instructions.
const RowKernels* row_kernels_by_name(const char* name);

// One per translation unit; null where the compiler's target lacks the instruction set.
const RowKernels* row_kernels_baseline();
const RowKernels* row_kernels_avx2();
const RowKernels* row_kernels_avx512();

}  // namespace deepinfer
