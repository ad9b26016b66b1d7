// Baseline variant of the row kernels, and the choice among variants.
#include "sampler/row_kernels.h"

#include <cstring>

#include "sampler/row_kernels_impl.h"

namespace deepinfer {
namespace {

constexpr RowKernels kBaseline = make_row_kernels("baseline");

const RowKernels* usable_avx2() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return row_kernels_avx2();
#endif
    return nullptr;
}

const RowKernels* usable_avx512() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return row_kernels_avx512();
    }
#endif
    return nullptr;
}

}  // namespace

const RowKernels* row_kernels_baseline() {
    return &kBaseline;
}

const RowKernels& row_kernels() {
    static const RowKernels* const best = [] {
        if (const RowKernels* k = usable_avx512()) return k;
        if (const RowKernels* k = usable_avx2()) return k;
        return row_kernels_baseline();
    }();
    return *best;
}

const RowKernels* row_kernels_by_name(const char* name) {
    if (std::strcmp(name, "baseline") == 0) return row_kernels_baseline();
    if (std::strcmp(name, "avx2") == 0) return usable_avx2();
    if (std::strcmp(name, "avx512") == 0) return usable_avx512();
    return nullptr;
}

}  // namespace deepinfer
