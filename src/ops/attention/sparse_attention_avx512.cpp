// Sparse attention at the avx512 level: the common source compiled with this level's flags.
#include "backends/cpu/kernels/attention_inl.h"

namespace deepinfer::cpu {

extern const AttentionKernels kAttention_avx512;
const AttentionKernels kAttention_avx512 = attention_kernels();

}  // namespace deepinfer::cpu
