// draft_attention through the sparse attention kernels.
//
// A block row sees what a row at the block's last position would see under a window of W + block
// length: the W committed rows before the block and the whole block. So every row becomes a
// sequence of its own that stands at the block's end and shares the block's rows; the kernels then
// need nothing new.
#include <algorithm>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "ops/attention/draft_attention.h"

namespace deepinfer::cpu {

void draft_attention_cpu(const Kernels& k,
                         Stream& stream,
                         const Tensor& q,
                         const BatchView& batch,
                         const AttentionCache& cache,
                         const Tensor& sink,
                         double scale,
                         Tensor out) {
    const int64_t num_rows = q.dim(0);
    if (num_rows == 0) return;
    DI_CHECK_EQ(batch.num_rows(), num_rows);
    enum Field { kPosition, kRowSeq, kFirstRow, kStart, kSlot, kFloor, kFields };
    // One more element a field: seq_rows has one entry more than there are sequences.
    std::vector<int32_t> memory(static_cast<size_t>(kFields * (num_rows + 1)));
    const auto field = [&](Field f) { return memory.data() + f * (num_rows + 1); };

    int32_t longest = 0;
    for (int64_t b = 0; b < batch.num_seqs(); ++b) {
        const int32_t first = batch.seq_rows.ptr<int32_t>()[b],
                      last = batch.seq_rows.ptr<int32_t>()[b + 1];
        const int32_t start = batch.seq_start.ptr<int32_t>()[b];
        // The floor carries the window's lower end, so that blocks of other lengths do not move it.
        const int32_t lowest =
            std::max({0, batch.window_floor.ptr<int32_t>()[b], start - cache.window});
        longest = std::max(longest, last - first);
        for (int32_t t = first; t < last; ++t) {
            field(kPosition)[t] = start + last - first - 1;
            field(kRowSeq)[t] = t;
            field(kFirstRow)[t] = first;
            field(kStart)[t] = start;
            field(kSlot)[t] = batch.seq_slot.ptr<int32_t>()[b];
            field(kFloor)[t] = std::min(lowest, start);
        }
    }
    BatchView rows;
    rows.positions = Tensor(field(kPosition), DType::kI32, {num_rows});
    rows.row_seq = Tensor(field(kRowSeq), DType::kI32, {num_rows});
    rows.seq_rows = Tensor(field(kFirstRow), DType::kI32, {num_rows + 1});
    rows.seq_start = Tensor(field(kStart), DType::kI32, {num_rows});
    rows.seq_slot = Tensor(field(kSlot), DType::kI32, {num_rows});
    rows.window_floor = Tensor(field(kFloor), DType::kI32, {num_rows});
    AttentionCache wide = cache;
    wide.kv_pool = Tensor();
    wide.window = cache.window + longest;
    sparse_attention_cpu(k, stream, q, rows, wide, Tensor(), sink, scale, out);
}

}  // namespace deepinfer::cpu
