// The CPU backend's op table for one ISA level.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/op_table.h"

namespace deepinfer::cpu {

/// All ops: the kernels of `isa`, and the fp32 twins for ops that only move or count (hash,
/// gathers).
OpTable cpu_op_table(Isa isa);

}  // namespace deepinfer::cpu
