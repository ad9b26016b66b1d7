#include "backends/cuda/cuda_backend.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_device.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/packed_weight.h"
#include "ops/backend.h"
#include "ops/numeric_class.h"

namespace deepinfer {
namespace cuda {

OpTable cuda_op_table() {
    constexpr NumericClass kRow = NumericClass::kRowInvariant, kExact = NumericClass::kExact;
    OpTable t;
    t.name = "cuda";
    t.acc = DType::kF32;
    choose(t.rms_norm, &rms_norm, "rms_norm.cuda", kRow);
    choose(t.linear, &linear, "linear.cuda", kRow);
    choose(t.grouped_o_proj, &grouped_o_proj, "grouped_o_proj.cuda", kRow);
    choose(t.quant_q8, &quant_q8, "quant_q8.cuda", kExact);
    choose(t.quant_q4m, &quant_q4m, "quant_q4m.cuda", kExact);
    choose(t.scale_bf16, &scale_bf16, "scale_bf16.cuda", kExact);
    choose(t.rope_table, &rope_table, "rope_table.cuda", kRow);
    choose(t.rope, &rope, "rope.cuda", kRow);
    choose(t.mhc_mixes, &mhc_mixes, "mhc_mixes.cuda", kRow);
    choose(t.mhc_collapse, &mhc_collapse, "mhc_collapse.cuda", kRow);
    choose(t.mhc_expand, &mhc_expand, "mhc_expand.cuda", kRow);
    choose(t.streams_mean, &streams_mean, "streams_mean.cuda", kRow);
    choose(t.mhc_step, &mhc_step, "mhc_step.cuda", kRow);
    choose(t.rms_norm_q8, &rms_norm_q8, "rms_norm_q8.cuda", kRow);
    choose(t.engram_hash, &engram_hash, "engram_hash.cuda", kExact);
    choose(t.engram_lookup, &engram_lookup, "engram_lookup.cuda", kExact);
    choose(t.engram_gate, &engram_gate, "engram_gate.cuda", kRow);
    choose(t.embed_streams, &embed_streams, "embed_streams.cuda", kExact);
    choose(t.gather_rows, &gather_rows, "gather_rows.cuda", kExact);
    choose(t.window_pack, &window_pack, "window_pack.cuda", kExact);
    choose(t.window_store, &window_store, "window_store.cuda", kExact);
    choose(t.kv_entry_store, &kv_entry_store, "kv_entry_store.cuda", kExact);
    choose(t.index_key_store, &index_key_store, "index_key_store.cuda", kExact);
    choose(t.compress_pool, &compress_pool, "compress_pool.cuda", kRow);
    choose(t.compress_tail_store, &compress_tail_store, "compress_tail_store.cuda", kExact);
    choose(t.index_scores, &index_scores, "index_scores.cuda", kRow);
    choose(t.candidate_blocks, &candidate_blocks, "candidate_blocks.cuda", kExact);
    choose(t.topk_select, &topk_select, "topk_select.cuda", kExact);
    choose(t.sparse_attention, &sparse_attention, "sparse_attention.cuda", kRow);
    choose(t.router_scores, &router_scores, "router_scores.cuda", kRow);
    choose(t.router_topk, &router_topk, "router_topk.cuda", kExact);
    choose(t.router_weights, &router_weights, "router_weights.cuda", kRow);
    choose(t.swiglu, &swiglu, "swiglu.cuda", kRow);
    choose(t.moe_ffn, &moe_ffn, "moe_ffn.cuda", kRow);
    choose(t.draft_attention, &draft_attention, "draft_attention.cuda", kRow);
    choose(t.add_rows, &add_rows, "add_rows.cuda", kRow);
    choose(t.argmax_rows, &argmax_rows, "argmax_rows.cuda", kExact);
    choose(t.sample_rows, &sample_rows, "sample_rows.cuda", kExact);
    choose(t.linear_bias, &linear_bias, "linear_bias.cuda", kRow);
    choose(t.vit_rope, &vit_rope, "vit_rope.cuda", kRow);
    choose(t.vit_attention, &vit_attention, "vit_attention.cuda", kRow);
    choose(t.vit_swiglu, &vit_swiglu, "vit_swiglu.cuda", kRow);
    choose(t.add_bf16, &add_bf16, "add_bf16.cuda", kExact);
    choose(t.gelu, &gelu, "gelu.cuda", kRow);
    choose(t.pixel_unshuffle, &pixel_unshuffle, "pixel_unshuffle.cuda", kExact);
    choose(t.place_rows, &place_rows, "place_rows.cuda", kExact);
    return t;
}

namespace {

/// Weights live until the backend dies: bump allocation in slabs, because one allocation a matrix
/// would round thousands of experts up to the driver's 2 MB.
class WeightArena {
  public:
    explicit WeightArena(CudaDevice& device) : device_(device) {}

    Result<uint8_t*> take(size_t bytes) {
        bytes = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
        if (used_ + bytes > capacity_) {
            // Slabs grow with what is already there: a small model stays small, a large one has few
            // slabs.
            const size_t slab =
                std::max(bytes, std::clamp(total_ / 4, size_t{8} << 20, size_t{1} << 30));
            Result<Buffer> b = device_.allocate(slab);
            if (!b.ok() && slab > bytes) b = device_.allocate(bytes);
            if (!b.ok()) return b.status();
            slabs_.push_back(std::move(b).value());
            used_ = 0;
            capacity_ = slabs_.back().bytes();
            total_ += capacity_;
        }
        uint8_t* p = static_cast<uint8_t*>(slabs_.back().data()) + used_;
        used_ += bytes;
        return p;
    }

  private:
    CudaDevice& device_;
    std::vector<Buffer> slabs_;
    size_t used_ = 0, capacity_ = 0, total_ = 0;
};

class CudaBackend final : public Backend {
  public:
    explicit CudaBackend(std::unique_ptr<CudaDevice> device)
        : device_(std::move(device)), weights_(*device_), ops_(cuda_op_table()) {}

    std::string name() const override { return "cuda"; }
    std::string description() const override {
        return device_->name() + ", " + std::to_string(device_->free_bytes() >> 20) +
               " MiB free; matrices: packed tiles, mma bf16 (k order fixed by shape); attention: "
               "mma (head_dim 512) or plain";
    }
    Device& device() override { return *device_; }
    const OpTable& ops() const override { return ops_; }

    Status prepare(Tensor& t) override {
        Result<uint8_t*> p = upload(t.data, static_cast<size_t>(t.bytes()));
        if (!p.ok()) return p.status();
        t.data = p.value();
        return {};
    }

    Status prepare(WeightMatrix& w) override {
        if (packed_chunk(w.dtype) == 0) {
            Result<uint8_t*> p = upload(w.weight, static_cast<size_t>(w.bytes()));
            if (!p.ok()) return p.status();
            w.weight = p.value();
            return {};
        }
        DI_RETURN_IF_ERROR(check_scales(w));
        const size_t scale_bytes =
            w.dtype == DType::kBF16
                ? 0
                : static_cast<size_t>(w.bytes() - w.n * w.k * dtype_bits(w.dtype) / 8);
        const size_t weight_bytes = static_cast<size_t>(w.bytes()) - scale_bytes;
        const size_t scale_at = (weight_bytes + 255) / 256 * 256;
        DI_RETURN_IF_ERROR(reserve_staging(scale_at + scale_bytes));
        auto* staging = static_cast<uint8_t*>(staging_.data());
        DI_RETURN_IF_ERROR(copy(staging, w.weight, weight_bytes));
        DI_RETURN_IF_ERROR(copy(staging + scale_at, w.scale, scale_bytes));
        Result<uint8_t*> p = weights_.take(static_cast<size_t>(packed_bytes(w.dtype, w.n, w.k)));
        if (!p.ok()) return p.status();
        CudaStream& s = device_->cuda();
        DI_CUDA(s,
                pack_weight(w.dtype, w.n, w.k, staging, staging + scale_at, p.value(), s.get()),
                "a weight",
                "[" + std::to_string(w.n) + ", " + std::to_string(w.k) + "]");
        s.synchronize();
        // The stored layout is not kept: every op of this backend reads `packed`.
        w.packed = p.value();
        w.weight = p.value();
        w.scale = nullptr;
        return s.status();
    }

    /// Everything is copied to the device.
    bool reads_stored(const WeightMatrix&) const override { return false; }

  private:
    Status copy(uint8_t* dst, const void* src, size_t bytes) {
        CudaStream& s = device_->cuda();
        device_->copy_to_device(s, dst, src, bytes);
        s.synchronize();
        return s.status();
    }
    Result<uint8_t*> upload(const void* src, size_t bytes) {
        Result<uint8_t*> p = weights_.take(bytes);
        if (!p.ok()) return p.status();
        const Status copied = copy(p.value(), src, bytes);
        if (!copied.ok()) return copied;
        return p.value();
    }
    Status reserve_staging(size_t bytes) {
        if (bytes <= staging_.bytes()) return {};
        staging_ = Buffer();
        Result<Buffer> b = device_->allocate(bytes);
        if (!b.ok()) return b.status();
        staging_ = std::move(b).value();
        return {};
    }

    std::unique_ptr<CudaDevice> device_;
    WeightArena weights_;
    Buffer staging_;  ///< stored bytes of the matrix that is being packed
    OpTable ops_;
};

}  // namespace
}  // namespace cuda

void register_cuda_backend() {
    register_backend("cuda", [](const BackendOptions& o) -> Result<std::unique_ptr<Backend>> {
        Result<std::unique_ptr<cuda::CudaDevice>> device = cuda::CudaDevice::create(o.device_index);
        if (!device.ok()) return device.status();
        return std::unique_ptr<Backend>(new cuda::CudaBackend(std::move(device).value()));
    });
}

}  // namespace deepinfer
