#include "backends/cpu/kernel_tables.h"

namespace deepinfer::cpu {

int& amx_config_key() {
    static thread_local int key = -1;
    return key;
}

const Kernels& kernels(Isa isa) {
    static const Kernels baseline{kLinear_baseline,
                                  kRows_baseline,
                                  kMhc_baseline,
                                  kAttention_baseline,
                                  kIndex_baseline,
                                  kVit_baseline,
                                  kRoof_baseline};
    static const Kernels avx2{
        kLinear_avx2, kRows_avx2, kMhc_avx2, kAttention_avx2, kIndex_avx2, kVit_avx2, kRoof_avx2};
    static const Kernels avx512{kLinear_avx512,
                                kRows_avx512,
                                kMhc_avx512,
                                kAttention_avx512,
                                kIndex_avx512,
                                kVit_avx512,
                                kRoof_avx512};
    static const Kernels avx512bf16{kLinear_avx512bf16,
                                    kRows_avx512,
                                    kMhc_avx512,
                                    kAttention_avx512bf16,
                                    kIndex_avx512,
                                    kVit_avx512,
                                    kRoof_avx512bf16};
    static const Kernels amx{kLinear_amx,
                             kRows_avx512,
                             kMhc_avx512,
                             kAttention_amx,
                             kIndex_avx512,
                             kVit_avx512,
                             kRoof_amx};
    switch (isa) {
        case Isa::kBaseline:
            return baseline;
        case Isa::kAvx2:
            return avx2;
        case Isa::kAvx512:
            return avx512;
        case Isa::kAvx512Bf16:
            return avx512bf16;
        case Isa::kAmx:
            return amx;
    }
    return baseline;
}

}  // namespace deepinfer::cpu
