// Writing the caches: window rows and rings, compressed entries, index keys.
// Row formats: tensor/quant_block.h (packed cache rows). All quantizers are exact: same bits
// everywhere.
#pragma once

#include "device/stream.h"
#include "ops/batch_view.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// rows[t] = packed q8 window row of kv[t].   kv [T, dh] bf16;  rows [T, window_row_bytes(dh)] u8
using WindowPackOp = void (*)(Stream& stream, const Tensor& kv, Tensor rows);

/// Commits this step's window rows to the rings: row t goes to ring[slot, position mod ring_len].
/// Of each sequence only its last ring_len rows are written (older ones would be overwritten
/// anyway).
///
/// rows [T, row_bytes] u8;  ring [num_slots, ring_len, row_bytes] u8 (row_bytes dense)
/// Attention reads this step's rows from `rows` and older ones from the ring, so store after
/// attention.
using WindowStoreOp = void (*)(Stream& stream,
                               const Tensor& rows,
                               const BatchView& batch,
                               Tensor ring);

/// pool[slots[e]] = packed q4n entry of c[e]; slots[e] == -1 writes nothing.
/// c [E, dh] bf16;  slots [E] i64;  pool [num_entries, kv_entry_bytes(dh)] u8, any row stride
using KvEntryStoreOp = void (*)(Stream& stream, const Tensor& c, const Tensor& slots, Tensor pool);

/// The same with q4m index keys. k [E, di] bf16;  pool [num_entries, index_key_bytes(di)] u8, any
/// row stride
using IndexKeyStoreOp = void (*)(Stream& stream, const Tensor& k, const Tensor& slots, Tensor pool);

void window_pack_ref(Stream& stream, const Tensor& kv, Tensor rows);
void window_store_ref(Stream& stream, const Tensor& rows, const BatchView& batch, Tensor ring);
void kv_entry_store_ref(Stream& stream, const Tensor& c, const Tensor& slots, Tensor pool);
void index_key_store_ref(Stream& stream, const Tensor& k, const Tensor& slots, Tensor pool);

}  // namespace deepinfer
