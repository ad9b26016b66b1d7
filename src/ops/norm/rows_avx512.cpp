// Kernels over one activation row at the avx512 level: the common source compiled with this level's
// flags.
#include "backends/cpu/kernels/rows_inl.h"

namespace deepinfer::cpu {

extern const RowKernels kRows_avx512;
const RowKernels kRows_avx512 = row_kernels();

}  // namespace deepinfer::cpu
