// Every DEEPINFER_* environment variable: name, type, default and what it does, in one table.
//
// Programs read the environment through these functions only, so that the table is complete and an
// unknown name can be reported. Options on a command line win over variables.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

enum class EnvType { kBool, kInt, kText };

struct EnvFlag {
    const char* name;
    EnvType type;
    const char* default_text;  ///< as a user would write it; "" = chosen at start
    const char* help;          ///< one sentence
};

/// The table, in the order of the documentation.
std::span<const EnvFlag> env_flags();

/// The variable's text, or nothing when it is unset or empty. Asking for a name that the table
/// lacks is our bug (DI_CHECK).
std::optional<std::string> env_text(const std::string& name);
/// kInvalidArgument "NAME is 'x', expected a whole number from lo to hi".
Result<std::optional<int64_t>> env_int(const std::string& name, int64_t lo, int64_t hi);
/// 0 or 1, nothing else.
Result<std::optional<bool>> env_bool(const std::string& name);

/// Names of the environment that start with DEEPINFER_ and stand in no row of the table, sorted.
std::vector<std::string> unknown_env_flags();

/// The whole of `text` as a whole number in [lo, hi]; nothing otherwise.
std::optional<int64_t> parse_whole_number(const std::string& text, int64_t lo, int64_t hi);

}  // namespace deepinfer
