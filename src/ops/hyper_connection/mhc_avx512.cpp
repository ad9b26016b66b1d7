// Kernels over residual streams at the avx512 level: the common source compiled with this level's
// flags.
#include "backends/cpu/kernels/mhc_inl.h"

namespace deepinfer::cpu {

extern const MhcKernels kMhc_avx512;
const MhcKernels kMhc_avx512 = mhc_kernels();

}  // namespace deepinfer::cpu
