// SpecRule: which drafts stand. The names of EngineConfig::spec_sampling.
#pragma once

#include <optional>
#include <string>

namespace deepinfer {

enum class SpecRule {
    kCoupled,    ///< drafts and target share their noise; bitwise the output without drafts
    kRejection,  ///< sampled drafts; the target's distribution
    kArgmax,     ///< rejection with the likeliest token as draft
    kBlock,      ///< sampled drafts, accepted as a block
};

/// "" is coupled; nothing for an unknown name.
inline std::optional<SpecRule> parse_spec_rule(const std::string& name) {
    if (name.empty() || name == "coupled") return SpecRule::kCoupled;
    if (name == "rejection") return SpecRule::kRejection;
    if (name == "argmax") return SpecRule::kArgmax;
    if (name == "block") return SpecRule::kBlock;
    return {};
}

}  // namespace deepinfer
