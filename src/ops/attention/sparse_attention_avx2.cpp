// Sparse attention at the avx2 level: the common source compiled with this level's flags.
#include "backends/cpu/kernels/attention_inl.h"

namespace deepinfer::cpu {

extern const AttentionKernels kAttention_avx2;
const AttentionKernels kAttention_avx2 = attention_kernels();

}  // namespace deepinfer::cpu
