#include "kvcache/cache_key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>

#include "base/check.h"

namespace deepinfer {
namespace {

/// One SHA-256 context per thread, reset for every digest: fetching an algorithm costs more than
/// hashing a block.
class Sha256 {
  public:
    Sha256() : context_(EVP_MD_CTX_new()) {
        DI_CHECK(context_ != nullptr);
        DI_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
    }
    void begin() { DI_CHECK(EVP_DigestInit_ex(context_.get(), nullptr, nullptr) == 1); }
    void add(const void* data, size_t bytes) {
        DI_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1);
    }
    CacheKey end() {
        CacheKey key;
        unsigned int length = 0;
        DI_CHECK(EVP_DigestFinal_ex(context_.get(), key.data(), &length) == 1);
        DI_CHECK_EQ(length, key.size());
        return key;
    }

  private:
    struct Free {
        void operator()(EVP_MD_CTX* c) const { EVP_MD_CTX_free(c); }
    };
    std::unique_ptr<EVP_MD_CTX, Free> context_;
};

Sha256& thread_sha256() {
    thread_local Sha256 sha;
    sha.begin();
    return sha;
}

void append_u32le(uint32_t v, std::vector<uint8_t>* out) {
    for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<uint8_t>(v >> shift));
}

}  // namespace

CacheKey salt_id(std::string_view deploy_secret,
                 std::string_view tenant,
                 std::string_view cache_salt) {
    std::string message(tenant);
    message.push_back('\0');
    message.append(cache_salt);
    CacheKey out;
    unsigned int length = 0;
    const unsigned char* done = HMAC(EVP_sha256(),
                                     deploy_secret.data(),
                                     static_cast<int>(deploy_secret.size()),
                                     reinterpret_cast<const unsigned char*>(message.data()),
                                     message.size(),
                                     out.data(),
                                     &length);
    DI_CHECK(done != nullptr);
    DI_CHECK_EQ(length, out.size());
    return out;
}

CacheKey root_key(const CacheKey& model_fingerprint,
                  const CacheKey& layout_fingerprint,
                  std::string_view adapter_id,
                  const CacheKey& salt) {
    Sha256& sha = thread_sha256();
    sha.add("kv1", 3);
    sha.add(model_fingerprint.data(), model_fingerprint.size());
    sha.add(layout_fingerprint.data(), layout_fingerprint.size());
    sha.add(adapter_id.data(), adapter_id.size());
    sha.add(salt.data(), salt.size());
    return sha.end();
}

CacheKey block_key(const CacheKey& parent,
                   std::span<const int32_t> tokens,
                   std::span<const uint8_t> extra) {
    static_assert(std::endian::native == std::endian::little, "token ids are hashed as u32le");
    Sha256& sha = thread_sha256();
    sha.add(parent.data(), parent.size());
    sha.add(tokens.data(), tokens.size_bytes());
    sha.add(extra.data(), extra.size());
    return sha.end();
}

std::vector<uint8_t> block_extra(int64_t begin, int64_t end, std::span<const ImageSpan> images) {
    std::vector<uint8_t> out;
    for (const ImageSpan& image : images) {
        if (image.end <= begin || image.begin >= end) continue;
        out.insert(out.end(), image.digest.begin(), image.digest.end());
        append_u32le(static_cast<uint32_t>(std::max<int64_t>(begin - image.begin, 0)), &out);
    }
    return out;
}

void extend_block_keys(const CacheKey& root,
                       std::span<const int32_t> tokens,
                       int block_tokens,
                       std::span<const ImageSpan> images,
                       std::vector<CacheKey>* keys) {
    const size_t size = static_cast<size_t>(block_tokens);
    for (size_t i = keys->size(); (i + 1) * size <= tokens.size(); ++i) {
        const auto begin = static_cast<int64_t>(i * size);
        const CacheKey& parent = keys->empty() ? root : keys->back();
        keys->push_back(block_key(parent,
                                  tokens.subspan(i * size, size),
                                  block_extra(begin, begin + block_tokens, images)));
    }
}

}  // namespace deepinfer
