#include "backends/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace deepinfer::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

// arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): Linux gives the 8 KiB tile state on demand.
bool request_amx_permission() {
#if defined(SYS_arch_prctl)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

// CPUID leaf 7: EDX bits 22 (AMX-BF16) and 24 (AMX-TILE). g++ 12's __builtin_cpu_supports has no
// name for them.
bool cpuid_has_amx() {
#if defined(__x86_64__)
    unsigned a = 7, b = 0, c = 0, d = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return ((d >> 22) & 1u) != 0 && ((d >> 24) & 1u) != 0;
#else
    return false;
#endif
}

std::vector<Isa> detect() {
    std::vector<Isa> found{Isa::kBaseline};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return found;
    found.push_back(Isa::kAvx2);
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512vbmi")) {
        return found;
    }
    found.push_back(Isa::kAvx512);
    if (!__builtin_cpu_supports("avx512bf16")) return found;
    found.push_back(Isa::kAvx512Bf16);
    if (cpuid_has_amx() && request_amx_permission()) found.push_back(Isa::kAmx);
#endif
    return found;
}

}  // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::kBaseline:
            return "baseline";
        case Isa::kAvx2:
            return "avx2";
        case Isa::kAvx512:
            return "avx512";
        case Isa::kAvx512Bf16:
            return "avx512bf16";
        case Isa::kAmx:
            return "amx";
    }
    return "?";
}

const std::vector<Isa>& available_isas() {
    static const std::vector<Isa> found = detect();
    return found;
}

Result<Isa> choose_isa(const std::string& name) {
    const std::vector<Isa>& have = available_isas();
    if (name.empty()) return have.back();
    std::string list;
    for (Isa isa : have) {
        if (name == isa_name(isa)) return isa;
        list += (list.empty() ? "" : ", ") + std::string(isa_name(isa));
    }
    bool known = false;
    for (Isa isa : kAll) known = known || name == isa_name(isa);
    return Status(StatusCode::kInvalidArgument,
                  "instruction set '" + name + "' " +
                      (known ? "is not available on this machine" : "is unknown") +
                      "; available here: " + list);
}

}  // namespace deepinfer::cpu
