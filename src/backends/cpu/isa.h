// Instruction sets of the CPU backend: what this machine has, and the names that select a level.
#pragma once

#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer::cpu {

/// Ascending: a machine that has one level has all lower ones.
enum class Isa {
    kBaseline,    ///< x86-64 as every machine has it (SSE2)
    kAvx2,        ///< AVX2, FMA, F16C
    kAvx512,      ///< AVX-512 F, BW, DQ, VL, VBMI
    kAvx512Bf16,  ///< and AVX-512 BF16
    kAmx,         ///< and AMX tiles with BF16
};

/// "baseline", "avx2", "avx512", "avx512bf16", "amx"
const char* isa_name(Isa isa);
/// The levels that this machine can run, ascending; never empty. The first call asks the kernel for
/// permission to use AMX tiles, which holds for the whole process.
const std::vector<Isa>& available_isas();
/// The level called `name`, or the best one for an empty name. kInvalidArgument with the list of
/// levels that would be accepted when the name is unknown or the machine lacks it.
Result<Isa> choose_isa(const std::string& name);

}  // namespace deepinfer::cpu
