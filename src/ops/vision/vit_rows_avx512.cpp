// Kernels of the vision tower at the avx512 level: the common source compiled with this level's
// flags.
#include "backends/cpu/kernels/vit_inl.h"

namespace deepinfer::cpu {

extern const VitKernels kVit_avx512;
const VitKernels kVit_avx512 = vit_kernels();

}  // namespace deepinfer::cpu
