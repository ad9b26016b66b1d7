// A guard in front of JSON parsers whose values recurse: how deep a text nests, before anything is
// built.
#pragma once

#include <string_view>

namespace deepinfer {

/// Deeper documents are refused: copying or printing one would recurse once a level.
constexpr int kMaxJsonDepth = 160;

/// Whether `text` nests arrays and objects deeper than `limit`. Brackets inside strings do not
/// count. Linear, allocates nothing; makes no other statement about the text.
bool json_nests_deeper(std::string_view text, int limit = kMaxJsonDepth);

}  // namespace deepinfer
