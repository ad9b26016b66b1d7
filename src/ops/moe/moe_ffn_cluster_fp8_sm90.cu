// The cluster core's expert kernels for FP8 weights: a file of their own, because they take long to
// compile.
#include "backends/cuda/sm90/cluster_experts.cuh"

namespace deepinfer::cuda {

void cluster_experts_fp8(
    Stream& stream, const ExpertParams& up, const ExpertParams& down, int experts, double rows) {
    pick_cluster_experts<DType::kFP8E4M3>(stream, up, down, experts, rows);
}

}  // namespace deepinfer::cuda
