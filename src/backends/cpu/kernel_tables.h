// The kernels of each ISA level.
#pragma once

#include "backends/cpu/isa.h"
#include "backends/cpu/kernels/kernels.h"

namespace deepinfer::cpu {

/// Kernels of a level. Only call those of a level that available_isas() lists.
const Kernels& kernels(Isa isa);

}  // namespace deepinfer::cpu
