// GEMM kernels at the avx2 level: the common source compiled with this level's flags.
#include "backends/cpu/kernels/gemm_inl.h"

namespace deepinfer::cpu {

extern const LinearKernels kLinear_avx2;
const LinearKernels kLinear_avx2 = linear_kernels();
extern const RoofKernels kRoof_avx2;
const RoofKernels kRoof_avx2 = roof_kernels();

}  // namespace deepinfer::cpu
