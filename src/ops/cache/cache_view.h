// CacheView: the memory a model reads and writes between steps, and the sizes it asks for.
//
// Three kinds per layer (which layers have which follows from the layer's role):
//   global     compressed KV entries and index keys of kv source layers, in blocks of
//   `block_tokens` tokens;
//              block b of a sequence covers positions [b·block_tokens, (b+1)·block_tokens) in every
//              source
//   window     one ring of packed window rows per sequence slot, every layer, addressed by position
//   mod ring_len tail       raw compressor rows (z, g) of the last tokens per slot, sources with
//   ratio > 1
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace deepinfer {

/// What the model needs per block and per slot; the cache manager allocates from these numbers
/// alone.
struct CacheGeometry {
    struct Layer {
        int ratio = 0;  ///< 0 window only; 1, 2, … granularity of the cache the layer reads
        bool kv_source = false;        ///< owns global entries and index keys
        int64_t window_row_bytes = 0;  ///< bytes of one ring row (0: no ring)
        int64_t kv_entry_bytes = 0;    ///< bytes of one stored entry (kv sources)
        int64_t index_key_bytes = 0;
        int64_t tail_row_bytes = 0;  ///< z and g of one token (kv sources with ratio > 1)
    };
    std::vector<Layer> layers;  ///< backbone layers, then the DSpark stages (rings only)
    int block_tokens = 64;      ///< multiple of every ratio
    int ring_len = 0;           ///< >= window + 2·(1 + max drafts)
    int tail_len = 0;

    /// Global bytes of one block over all sources (890 bytes a token in the release).
    int64_t block_bytes() const {
        int64_t b = 0;
        for (const Layer& l : layers) {
            if (l.kv_source) b += block_tokens / l.ratio * (l.kv_entry_bytes + l.index_key_bytes);
        }
        return b;
    }
    /// Window and tail bytes of one sequence slot over all layers.
    int64_t slot_bytes() const {
        int64_t b = 0;
        for (const Layer& l : layers)
            b += ring_len * l.window_row_bytes + tail_len * l.tail_row_bytes;
        return b;
    }
};

struct CacheView {
    struct Layer {
        Tensor window_ring;  ///< u8 [num_slots, ring_len, window_row_bytes]
        Tensor kv_pool;   ///< u8 [num_blocks · entries_per_block, kv_entry_bytes]   (kv sources)
        Tensor key_pool;  ///< u8 [num_blocks · entries_per_block, index_key_bytes]  (kv sources)
        Tensor
            tail;  ///< accumulator type [num_slots, tail_len, 2, dh]         (sources, ratio > 1)
        int entries_per_block = 0;
    };
    std::vector<Layer> layers;
    int64_t num_blocks = 0;
    int64_t num_slots = 0;
};

}  // namespace deepinfer
