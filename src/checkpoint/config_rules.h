// The rules that tie the fields of a config together (model spec 1.3). Single fields are bounded by
// the parser before; here sizes divide, sources exist and roles agree.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/hf_config.h"

namespace deepinfer {

/// Every broken rule as a sentence that names the fields; empty = the config is sound. Needs fields
/// within the parser's bounds and compress_ratios of full length.
std::vector<std::string> broken_config_rules(const ModelConfig& config);

}  // namespace deepinfer
