// AMX tile configuration, shared by all AMX kernels of a thread.
//
// Tiles 0..3 accumulate (rows × 16 fp32), 4 and 5 hold rows of the left operand (rows × 32 bf16), 6
// and 7 the right operand (16 pairs of k × 16 columns). Tiles 0, 1, 4 have `rows0` rows, 2, 3, 5
// have `rows1`.
//
// TDPBF16PS adds, per fp32 element, the sum of the 16 even-k products to the sum of the 16 odd-k
// ones (each an FMA chain from zero in ascending k) and that to the accumulator: one order for
// every number of rows, which is what batch invariance needs. Denormals are flushed.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backends/cpu/kernels/kernels.h"

namespace deepinfer::cpu {
namespace {

// g++ 12's intrinsics do not say what memory they read: a tile load none, the configuration its
// first eight bytes. Stores in front of them could be moved behind or, of a local variable, left
// out. (A measurement of the peak did lose its configuration so, and died of SIGILL.)
#define DI_TILE_LOAD(tile, base, stride)     \
    do {                                     \
        __asm__ volatile("" : : : "memory"); \
        _tile_loadd(tile, base, stride);     \
    } while (false)

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t colsb[16] = {};
    uint8_t rows[16] = {};
};

/// Loads the configuration unless this thread has it already.
inline void configure_tiles(int rows0, int rows1) {
    int& current = amx_config_key();
    const int key = rows0 * 32 + rows1;
    if (key == current) return;
    TileConfig c;
    for (int t = 0; t < 8; ++t) {
        c.colsb[t] = 64;
        c.rows[t] = static_cast<uint8_t>(t >= 6                         ? 16
                                         : (t == 2 || t == 3 || t == 5) ? rows1
                                                                        : rows0);
    }
    __asm__ volatile("" : : "m"(c));  // all of it
    _tile_loadconfig(&c);
    current = key;
}

}  // namespace
}  // namespace deepinfer::cpu
