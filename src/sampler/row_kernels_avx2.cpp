// AVX2 variant of the row kernels; built with that instruction set's flags (CMakeLists.txt).
#include "sampler/row_kernels.h"

#if defined(__AVX2__)

#include "sampler/row_kernels_impl.h"

namespace deepinfer {
namespace {
constexpr RowKernels kKernels = make_row_kernels("avx2");
}
const RowKernels* row_kernels_avx2() {
    return &kKernels;
}
}  // namespace deepinfer

#else

namespace deepinfer {
const RowKernels* row_kernels_avx2() {
    return nullptr;
}
}  // namespace deepinfer

#endif
