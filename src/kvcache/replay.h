// Where to resume after a prefix hit: which positions are run again to rebuild window state.
//
// Cached blocks hold the global entries alone. Window rows are rebuilt by running part of the hit
// again without rewriting its entries. With L = num_layers, mid = the last kv source layer, W =
// window:
//
//   replay_start = min(hit, prompt - keep) - h_enc,       a hit with replay_start <= 0 is not used
//   bounded   keep = W + backtrack              h_enc = W
//   exact     keep = W + (L - mid - 2)(W - 1)   h_enc = (mid + 1)(W - 1)
//
// keep: prompt rows that run through the layers above mid; their inputs must be there even if they
// lie inside the hit. h_enc: rows before them that layers 0..mid need. `exact` covers every window
// dependency, so the result has the bits of a cold run; `bounded` does not, by design.
#pragma once

#include <cstdint>
#include <optional>

namespace deepinfer {

enum class ReplayKind { kBounded, kExact };

struct ReplayGeometry {
    int window = 0;      ///< W
    int num_layers = 0;  ///< backbone layers, drafting stages left out
    int mid = 0;         ///< index of the last layer that is a kv source
    int backtrack = 0;   ///< rows that verification may roll back: 2·(1 + max drafts)
};

/// Rows of the prompt's end that run through the layers above mid.
int64_t replay_keep(ReplayKind kind, const ReplayGeometry& geometry);
/// Rows before those (or before the hit's end) that layers 0..mid run for window state.
int64_t replay_encoder_rows(ReplayKind kind, const ReplayGeometry& geometry);

struct ReplayPlan {
    int64_t start = 0;       ///< first position that runs again; also the window floor: no window
                             ///< read goes below it
    int64_t write_from = 0;  ///< = hit: entries below it stay as they are
    int64_t replayed_rows = 0;  ///< hit - start: what the hit costs
};

/// Empty: treat the hit as a miss. hit_tokens <= prompt_tokens; they may be equal, because the
/// replay reaches the last position and so yields its logits.
std::optional<ReplayPlan> plan_replay(ReplayKind kind,
                                      const ReplayGeometry& geometry,
                                      int64_t prompt_tokens,
                                      int64_t hit_tokens);

/// The same where rows from `decoder_from` on run through the layers above mid.
std::optional<ReplayPlan> plan_replay_from(ReplayKind kind,
                                           const ReplayGeometry& geometry,
                                           int64_t decoder_from,
                                           int64_t hit_tokens);

}  // namespace deepinfer
