// Kernels over one activation row at the avx2 level: the common source compiled with this level's
// flags.
#include "backends/cpu/kernels/rows_inl.h"

namespace deepinfer::cpu {

extern const RowKernels kRows_avx2;
const RowKernels kRows_avx2 = row_kernels();

}  // namespace deepinfer::cpu
