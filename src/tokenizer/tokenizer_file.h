// Reads tokenizer.json: untrusted bytes in, checked parts out.
//
// What is checked here: it is JSON of the expected shape within the stated limits, and every
// setting is the official one. What the vocabulary and the merges say to each other is checked by
// build_tokenizer_data (tokenizer_data.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

inline constexpr size_t kMaxTokenizerFileBytes = size_t{64} << 20;  ///< ten times the released file
inline constexpr int32_t kMaxVocabSize = 1 << 20;
inline constexpr size_t kMaxAddedTokenBytes = 1024;  ///< bounds the work per byte of text

/// A string inside TokenizerFile::bytes.
struct ByteSpan {
    uint32_t begin = 0;
    uint32_t size = 0;
};

struct VocabEntry {
    ByteSpan token;  ///< bytes if `in_alphabet`, else the key as written
    int32_t id = 0;
    bool in_alphabet = true;
};

struct MergeEntry {
    ByteSpan left;  ///< bytes, not alphabet
    ByteSpan right;
};

struct AddedTokenEntry {
    std::string content;
    int32_t id = 0;
    bool special = false;
};

/// The parts of a tokenizer.json whose settings are all official.
struct TokenizerFile {
    std::string bytes;
    std::vector<VocabEntry> vocab;   ///< in file order
    std::vector<MergeEntry> merges;  ///< by rank
    std::vector<AddedTokenEntry> added_tokens;

    std::string_view text(ByteSpan span) const {
        return std::string_view(bytes).substr(span.begin, span.size);
    }
};

/// kInvalidFile: too large, no JSON, wrong shape. kUnimplemented: a setting with another value than
/// the official one, named in the message.
Result<TokenizerFile> parse_tokenizer_file(std::string_view json);

/// Names of the BOS and EOS tokens in tokenizer_config.json; empty where it does not say.
struct TokenizerConfigNames {
    std::string bos_token;
    std::string eos_token;
};
Result<TokenizerConfigNames> parse_tokenizer_config(std::string_view json);

}  // namespace deepinfer
