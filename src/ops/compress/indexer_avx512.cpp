// Index scores at the avx512 level: the common source compiled with this level's flags.
#include "backends/cpu/kernels/index_inl.h"

namespace deepinfer::cpu {

extern const IndexKernels kIndex_avx512;
const IndexKernels kIndex_avx512 = index_kernels();

}  // namespace deepinfer::cpu
