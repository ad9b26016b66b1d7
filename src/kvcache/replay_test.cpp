#include "kvcache/replay.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/golden_file.h"

namespace deepinfer {
namespace {

using json = nlohmann::json;

const ReplayGeometry kTiny{16, 12, 6, 12};       // the tiny checkpoint of the field cases
const ReplayGeometry kRelease{128, 40, 20, 12};  // the released model, five drafts

TEST(Replay, SizesOfBothKinds) {
    EXPECT_EQ(replay_keep(ReplayKind::kBounded, kRelease), 140);
    EXPECT_EQ(replay_encoder_rows(ReplayKind::kBounded, kRelease), 128);
    EXPECT_EQ(replay_keep(ReplayKind::kExact, kRelease), 2414);
    EXPECT_EQ(replay_encoder_rows(ReplayKind::kExact, kRelease), 2667);
    EXPECT_EQ(replay_keep(ReplayKind::kExact, kTiny), 76);
    EXPECT_EQ(replay_encoder_rows(ReplayKind::kExact, kTiny), 105);
}

TEST(Replay, RowsOfTheFieldCase) {
    std::ifstream file(testing::data_path("cases/scheduler_cache.json"));
    int ran = 0;
    for (const json& c : json::parse(file)) {
        if (c["id"] != "C-054") continue;
        for (const json& row : c["rows"]) {
            if (!row["in"].contains("N")) continue;  // rows that need a running model
            SCOPED_TRACE(row.dump());
            for (const auto& [name, kind] :
                 {std::pair{"bounded_replay_start", ReplayKind::kBounded},
                  {"exact_replay_start", ReplayKind::kExact}}) {
                const auto plan = plan_replay(kind, kTiny, row["in"]["N"], row["in"]["hit"]);
                if (row["want"][name] == "miss") {
                    EXPECT_FALSE(plan.has_value()) << name;
                } else {
                    ASSERT_TRUE(plan.has_value()) << name;
                    EXPECT_EQ(plan->start, row["want"][name]) << name;
                    EXPECT_EQ(plan->write_from, row["in"]["hit"]);
                    EXPECT_EQ(plan->replayed_rows, plan->write_from - plan->start);
                }
            }
            ++ran;
        }
    }
    EXPECT_EQ(ran, 8);
}

TEST(Replay, VeryShortHitsAreMisses) {
    EXPECT_FALSE(plan_replay(ReplayKind::kBounded, kTiny, 300, 16));
    EXPECT_FALSE(plan_replay(ReplayKind::kBounded, kTiny, 300, 0));
    EXPECT_EQ(plan_replay(ReplayKind::kBounded, kTiny, 300, 17)->start, 1);
    EXPECT_FALSE(plan_replay(ReplayKind::kExact, kRelease, 100000, 2667));
    EXPECT_EQ(plan_replay(ReplayKind::kExact, kRelease, 100000, 2668)->start, 1);
}

/// The exact rule derived the long way: which rows of each layer are complete when everything below
/// `start` is missing, and which rows must be.
TEST(Replay, ExactCoversEveryWindowDependencyAndNoMore) {
    for (const ReplayGeometry g : {kTiny,
                                   ReplayGeometry{4, 8, 3, 4},
                                   ReplayGeometry{8, 6, 4, 4},
                                   ReplayGeometry{8, 6, 5, 4}}) {
        for (int64_t n = 60; n < 400; n += 7) {
            for (int64_t hit = 32; hit <= n; hit += 32) {
                const auto plan = plan_replay(ReplayKind::kExact, g, n, hit);
                if (!plan) continue;
                // First row whose input to layer `l` is exact, when rows from `start` on run with
                // windows clipped at start: one layer needs its W-1 predecessors complete.
                int64_t exact_from = plan->start;
                for (int l = 0; l <= g.mid; ++l) exact_from += g.window - 1;
                // Entries from the hit on are written from these rows; layers above mid take the
                // last rows.
                EXPECT_LE(exact_from, hit);
                int64_t needed =
                    n - 1;  // the last row of the last layer, and a full window for decoding
                needed -= g.window - 1;
                for (int l = g.num_layers - 2; l > g.mid; --l) needed -= g.window - 1;
                if (g.mid < g.num_layers - 1) {
                    EXPECT_LE(exact_from, needed);
                    EXPECT_EQ(exact_from, std::min(hit, needed)) << "more rows than needed";
                }
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer
