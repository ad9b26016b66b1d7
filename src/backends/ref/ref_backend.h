// The twins as backends: "ref" (fp32) and "exact" (fp64 between rounding points). Slow, obvious,
// the judges.
#pragma once

namespace deepinfer {

/// Registers "ref" and "exact".
void register_ref_backends();

}  // namespace deepinfer
