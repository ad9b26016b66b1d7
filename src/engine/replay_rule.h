// Where a sequence starts after a prefix hit.
//
// The pool keeps compressed entries and index keys, not the windows. After a hit of H tokens the last
// positions are computed again so that every later read finds its window: replay starts at
//     min(H, N − keep) − h_enc        (N = tokens to compute in all)
// and a hit for which that is not positive is no gain and counts as a miss.
//
// bounded  keep = W + 2·(1 + drafts), h_enc = W: windows may miss their own history; results after a
//          hit differ slightly from a cold run.
// exact    every dependency through all layers is complete; results are those of a cold run, bit for bit.
//          With m the last layer that owns global entries: the m + 1 lower layers need W − 1 earlier rows
//          each, h_enc = (m + 1)(W − 1); keep = W + (L − m − 2)(W − 1) for the layers above.
#pragma once

#include <cstdint>

namespace deepinfer {

struct ReplayRule {
    int64_t keep = 0;
    int64_t h_enc = 0;

    static ReplayRule bounded(int64_t window, int64_t drafts) {
        return {window + 2 * (1 + drafts), window};
    }
    static ReplayRule exact(int64_t window, int64_t num_layers, int64_t last_kv_source) {
        return {window + (num_layers - last_kv_source - 2) * (window - 1),
                (last_kv_source + 1) * (window - 1)};
    }

    /// First position to compute again, or 0: the hit is not used.
    int64_t start(int64_t num_tokens, int64_t hit) const {
        const int64_t from = num_tokens - keep < hit ? num_tokens - keep : hit;
        return from - h_enc > 0 ? from - h_enc : 0;
    }
};

}  // namespace deepinfer
