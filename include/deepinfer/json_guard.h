// A guard in front of JSON parsers whose values recurse: how deep a text nests, before anything is
// built.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

/// Deeper documents are refused: copying or printing one would recurse once a level.
constexpr int kMaxJsonDepth = 160;

/// Whether `text` nests arrays and objects deeper than `limit`. Brackets inside strings do not
/// count. Linear, allocates nothing; makes no other statement about the text.
bool json_nests_deeper(std::string_view text, int limit = kMaxJsonDepth);

/// A member name that an object of `text` has twice, if one does. Parsers keep one of the two
/// values without a word; whoever wrote the text meant something by both. Names are compared after
/// their escapes. Linear; makes no other statement about the text.
std::optional<std::string> repeated_json_key(std::string_view text);

}  // namespace deepinfer
