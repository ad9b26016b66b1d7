// Expert feed-forward for more than a handful of rows an expert: which core takes it, and the
// instantiations for FP4 weights (moe_ffn_cluster_fp8_sm90.cu: FP8).
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/sm90/cluster_experts.cuh"

namespace deepinfer::cuda {

bool cluster_experts_take(
    DType t, const ExpertParams& up, const ExpertParams& down, int experts, double rows) {
    if (!up.aligned || up.n % 64 != 0 || up.chunks < 2 || down.chunks < 2) return false;
    // A single expert has too few tiles to fill the chip, and FP8 ones are that.
    return experts > 1 ? t == DType::kFP4 : rows >= 192;
}

void cluster_experts(Stream& stream,
                     DType t,
                     const ExpertParams& up,
                     const ExpertParams& down,
                     int experts,
                     double rows) {
    ExpertParams ordered = up;
    const Routing& r = up.routing;
    if (r.slot_row != nullptr) {
        gather_rows(stream,
                    Tensor(const_cast<uint16_t*>(up.x), DType::kBF16, {r.num_rows, up.k}),
                    Tensor(r.slot_row, DType::kI32, {r.num_slots}),
                    Tensor(down.out, DType::kBF16, {r.num_slots, up.k}));
        ordered.x = down.out;
    }
    if (t != DType::kFP4) return cluster_experts_fp8(stream, ordered, down, experts, rows);
    // Room above the mean, so that one pass over the weights serves nearly every expert.
    if (rows <= 20) return run_cluster_experts<DType::kFP4, 32>(stream, ordered, down, experts);
    if (rows <= 50) return run_cluster_experts<DType::kFP4, 64>(stream, ordered, down, experts);
    pick_cluster_experts<DType::kFP4>(stream, ordered, down, experts, rows);
}

}  // namespace deepinfer::cuda
