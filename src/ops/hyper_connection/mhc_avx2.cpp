// Kernels over residual streams at the avx2 level: the common source compiled with this level's
// flags.
#include "backends/cpu/kernels/mhc_inl.h"

namespace deepinfer::cpu {

extern const MhcKernels kMhc_avx2;
const MhcKernels kMhc_avx2 = mhc_kernels();

}  // namespace deepinfer::cpu
