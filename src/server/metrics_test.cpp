// What a scrape says about an engine.
#include "server/metrics.h"

#include <gtest/gtest.h>

namespace deepinfer::server {
namespace {

TEST(Metrics, DraftsAreCountedOnceThereAreAny) {
    const Metrics metrics;
    const EngineConfig config;
    EngineStats stats;
    const auto text = [&] { return metrics.exposition(&stats, &config, "m", true, 0); };
    EXPECT_EQ(text().find("spec_decode"), std::string::npos);
    stats.spec.proposed = 30;
    stats.spec.rounds = 6;
    stats.spec.verified = 24;
    stats.spec.accepted = 18;
    const std::string labels = "{model_name=\"m\",engine=\"0\"} ";
    for (const char* line :
         {"num_drafts_total 6", "num_draft_tokens_total 24", "num_accepted_tokens_total 18"}) {
        const std::string name(line, std::string_view(line).find(' '));
        const std::string value(line + name.size() + 1);
        EXPECT_NE(text().find("vllm:spec_decode_" + name + labels + value + "\n"),
                  std::string::npos)
            << line;
    }
}

}  // namespace
}  // namespace deepinfer::server
