// Strict JSON for files from outside: depth and size limits, duplicate keys refused, no exceptions.
//
// nlohmann/json alone keeps the last of two equal keys and nests without a limit; a crafted header
// could then show one value to a scanner and another one to us, or grow without bound.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "deepinfer/status.h"

namespace deepinfer {

struct JsonLimits {
    size_t max_depth = 8;          ///< nested objects and arrays
    size_t max_nodes = 4'000'000;  ///< values of any kind, bounds the memory of the tree
};

/// kInvalidFile names `where`, the byte and what was wrong.
Result<nlohmann::json> parse_strict_json(std::string_view text,
                                         const JsonLimits& limits,
                                         const std::string& where);

/// A name or value from a file, safe to put in a message: quoted, control bytes escaped, cut after
/// 160 bytes.
std::string in_quotes(std::string_view text);

/// A short rendering of any JSON value for "found …" in a message.
std::string show_json(const nlohmann::json& value);

}  // namespace deepinfer
