// The CUDA backend: NVIDIA devices of compute capability 9.0 (other kernels than the sm_90a ones
// also build for 10.0).
#pragma once

namespace deepinfer {

/// Registers "cuda". Creating it fails with kUnavailable (no device, wrong index) or kUnimplemented
/// (other chip).
void register_cuda_backend();

}  // namespace deepinfer
