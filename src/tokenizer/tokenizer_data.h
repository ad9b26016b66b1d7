// What a loaded tokenizer knows. Immutable once built; shared by Tokenizer and StreamDecoder.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_file.h"

namespace deepinfer {

/// Bytes of a base token → id. Open addressing, at most half full; the bytes stay with their owner.
class TokenIndex {
  public:
    void reset(size_t num_tokens);
    /// False if the bytes are there already. `bytes` outlives the index.
    bool add(std::string_view bytes, int32_t id);
    /// −1: not there.
    int32_t find(std::string_view bytes) const;

  private:
    struct Slot {
        const char* data = nullptr;
        uint32_t size = 0;
        int32_t id = -1;
    };
    std::vector<Slot> slots_ = std::vector<Slot>(2);
};

struct TokenizerData {
    std::string bytes;            ///< of all tokens in ascending order of id
    std::vector<uint32_t> begin;  ///< [vocab_size + 1] token i is bytes[begin[i], begin[i + 1])
    std::vector<uint8_t> flags;   ///< [vocab_size] of kAdded, kSpecial
    std::array<int32_t, 256> byte_ids{};
    MergeTable merges;
    AddedTokenTrie added;
    TokenIndex base_tokens;  ///< points into `bytes`
    int32_t bos_id = -1;
    int32_t eos_id = -1;
    bool numbered = false;  ///< tokens are their numbers (Tokenizer::numbered)

    static constexpr uint8_t kAdded = 1;
    static constexpr uint8_t kSpecial = 2;

    TokenizerData() = default;
    TokenizerData(const TokenizerData&) = delete;  // base_tokens would point into the original
    TokenizerData& operator=(const TokenizerData&) = delete;

    int32_t vocab_size() const { return static_cast<int32_t>(flags.size()); }
    bool contains(int32_t id) const { return id >= 0 && id < vocab_size(); }
    std::string_view token(int32_t id) const {
        const size_t i = static_cast<size_t>(id);
        return std::string_view(bytes).substr(begin[i], begin[i + 1] - begin[i]);
    }
    /// Added token by its spelling, else base token by its bytes, else −1.
    int32_t id_of(std::string_view token) const;
};

/// Joins the parts: every id below the largest has one token, every byte has a base token, every
/// merge joins two base tokens to a third. kInvalidFile otherwise.
Result<std::shared_ptr<TokenizerData>> build_tokenizer_data(const TokenizerFile& file);

}  // namespace deepinfer
