// GEMM kernels at the avx512 level: the common source compiled with this level's flags.
#include "backends/cpu/kernels/gemm_inl.h"

namespace deepinfer::cpu {

extern const LinearKernels kLinear_avx512;
const LinearKernels kLinear_avx512 = linear_kernels();
extern const RoofKernels kRoof_avx512;
const RoofKernels kRoof_avx512 = roof_kernels();

}  // namespace deepinfer::cpu
