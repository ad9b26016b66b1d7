// Kernels of the vision tower at the avx2 level: the common source compiled with this level's
// flags.
#include "backends/cpu/kernels/vit_inl.h"

namespace deepinfer::cpu {

extern const VitKernels kVit_avx2;
const VitKernels kVit_avx2 = vit_kernels();

}  // namespace deepinfer::cpu
