// Identity of a cached block: a SHA-256 chain over everything its contents depend on.
//
//   salt_id = HMAC-SHA256(deploy_secret, tenant || 0x00 || cache_salt)
//   root    = SHA-256("kv1" || model_fp || layout_fp || adapter_id || salt_id)
//   key_i   = SHA-256(key_{i-1} || u32le token ids of block i || extra_i),   key_{-1} = root
//   extra_i = for each image overlapping block i: digest32 || u32le offset of the block's start (or
//   of
//             the image's own start, 0, if it begins inside the block) within the image
//
// A different tenant, salt, checkpoint, row format or picture therefore gives a disjoint key space,
// and a block's key stands for the whole prefix up to it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace deepinfer {

using CacheKey = std::array<uint8_t, 32>;

/// Hash functor: keys are uniformly distributed already.
struct CacheKeyHash {
    size_t operator()(const CacheKey& key) const {
        size_t h = 0;
        std::memcpy(&h, key.data(), sizeof h);
        return h;
    }
};

/// An image among the tokens: which positions it covers, and what it shows.
struct ImageSpan {
    int64_t begin = 0;  ///< first position
    int64_t end = 0;    ///< one past the last
    CacheKey
        digest{};  ///< of the decoded pixels and their geometry; computed here, never by a client
};

/// Who may share: requests with equal salt ids can meet in the cache.
CacheKey salt_id(std::string_view deploy_secret,
                 std::string_view tenant,
                 std::string_view cache_salt);

/// Root of all chains of one tenant salt, model and storage layout.
CacheKey root_key(const CacheKey& model_fingerprint,
                  const CacheKey& layout_fingerprint,
                  std::string_view adapter_id,
                  const CacheKey& salt);

/// key_i from its parent. `extra` as above.
CacheKey block_key(const CacheKey& parent,
                   std::span<const int32_t> tokens,
                   std::span<const uint8_t> extra = {});

/// extra_i of the block at positions [begin, end). `images` ascending and disjoint.
std::vector<uint8_t> block_extra(int64_t begin, int64_t end, std::span<const ImageSpan> images);

/// Appends the keys of the full blocks keys->size(), ... of `tokens` to *keys.
void extend_block_keys(const CacheKey& root,
                       std::span<const int32_t> tokens,
                       int block_tokens,
                       std::span<const ImageSpan> images,
                       std::vector<CacheKey>* keys);

}  // namespace deepinfer
