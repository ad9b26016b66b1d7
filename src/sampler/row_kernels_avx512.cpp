// AVX512 variant of the row kernels; built with that instruction set's flags (CMakeLists.txt).
#include "sampler/row_kernels.h"

#if defined(__AVX512DQ__)

#include "sampler/row_kernels_impl.h"

namespace deepinfer {
namespace {
constexpr RowKernels kKernels = make_row_kernels("avx512");
}
const RowKernels* row_kernels_avx512() {
    return &kKernels;
}
}  // namespace deepinfer

#else

namespace deepinfer {
const RowKernels* row_kernels_avx512() {
    return nullptr;
}
}  // namespace deepinfer

#endif
