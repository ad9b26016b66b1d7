// Engram's token map: raw token id → compressed id, shared by tokens whose text differs only in
// case, accents, compatibility form or white space.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/tokenizer.h"

namespace deepinfer {

struct EngramTokenMap {
    std::vector<int32_t> map;  ///< [vocab_size], each in [0, count)
    int32_t count = 0;         ///< must equal engram_compressed_vocab_size of the checkpoint
};

/// Ids in ascending order; a new key gets the next compressed id. The key of a token is its text
/// normalised, or the text itself where nothing is left of it, or its spelling in tokenizer.json
/// where its bytes alone are no text.
///
/// Numerics  exact; NFKC, NFD, general category M and lower case of Unicode 15 (utf8proc 2.8).
/// Cost      about 50 ms for 129,280 tokens: once per start.
/// Source    model specification 3.10.
EngramTokenMap engram_token_map(const Tokenizer& tokenizer);

/// The normalisation alone: NFKC, NFD, marks dropped, lower case per character, runs of space, tab,
/// CR and LF to one space, white space stripped from both ends unless the whole text is one space.
/// `text` is well-formed UTF-8.
std::string engram_normalize(std::string_view text);

}  // namespace deepinfer
