#include "kvcache/replay.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

int64_t replay_keep(ReplayKind kind, const ReplayGeometry& g) {
    DI_CHECK(g.window > 0 && g.mid >= 0 && g.mid < g.num_layers);
    if (kind == ReplayKind::kBounded) return g.window + g.backtrack;
    return g.window + static_cast<int64_t>(std::max(g.num_layers - g.mid - 2, 0)) * (g.window - 1);
}

int64_t replay_encoder_rows(ReplayKind kind, const ReplayGeometry& g) {
    if (kind == ReplayKind::kBounded) return g.window;
    return static_cast<int64_t>(g.mid + 1) * (g.window - 1);
}

std::optional<ReplayPlan> plan_replay(ReplayKind kind,
                                      const ReplayGeometry& geometry,
                                      int64_t prompt_tokens,
                                      int64_t hit_tokens) {
    DI_CHECK(hit_tokens >= 0 && hit_tokens <= prompt_tokens);
    return plan_replay_from(
        kind, geometry, prompt_tokens - replay_keep(kind, geometry), hit_tokens);
}

std::optional<ReplayPlan> plan_replay_from(ReplayKind kind,
                                           const ReplayGeometry& geometry,
                                           int64_t decoder_from,
                                           int64_t hit_tokens) {
    const int64_t start = std::min(hit_tokens, decoder_from) - replay_encoder_rows(kind, geometry);
    if (start <= 0) return std::nullopt;
    return ReplayPlan{start, hit_tokens, hit_tokens - start};
}

}  // namespace deepinfer
