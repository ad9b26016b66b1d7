// The CPU backend: fast kernels for x86, chosen by CPUID at start-up.
#pragma once

namespace deepinfer {

/// Registers "cpu".
void register_cpu_backend();

}  // namespace deepinfer
