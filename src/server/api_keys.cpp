#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <set>

namespace deepinfer::server {

Result<std::shared_ptr<const KeyRing>> KeyRing::from_keys(std::vector<ApiKey> keys) {
    if (keys.empty()) return Status(StatusCode::kInvalidArgument, "the keys file declares no key");
    std::set<std::string> ids;
    for (const ApiKey& key : keys) {
        if (!ids.insert(key.id).second)
            return Status(StatusCode::kInvalidArgument,
                          "the keys file declares the id '" + key.id + "' twice");
    }
    auto ring = std::make_shared<KeyRing>();
    ring->keys_ = std::move(keys);
    return std::shared_ptr<const KeyRing>(std::move(ring));
}

const ApiKey* KeyRing::find(std::string_view presented) const {
    std::array<unsigned char, 32> digest;
    SHA256(
        reinterpret_cast<const unsigned char*>(presented.data()), presented.size(), digest.data());
    const ApiKey* found = nullptr;
    for (const ApiKey& key : keys_) {
        if (CRYPTO_memcmp(key.digest.data(), digest.data(), digest.size()) == 0) found = &key;
    }
    return found;
}

Result<int64_t> parse_utc(const std::string& text) {
    std::tm utc{};
    int used = 0;
    const int date =
        std::sscanf(text.c_str(), "%4d-%2d-%2d%n", &utc.tm_year, &utc.tm_mon, &utc.tm_mday, &used);
    std::string rest = date == 3 ? text.substr(static_cast<size_t>(used)) : "?";
    if (rest != "") {
        used = 0;
        const int time = std::sscanf(
            rest.c_str(), "T%2d:%2d:%2dZ%n", &utc.tm_hour, &utc.tm_min, &utc.tm_sec, &used);
        if (time != 3 || used != static_cast<int>(rest.size()))
            return Status(StatusCode::kInvalidArgument,
                          "'" + text + "' is no time, expected YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ");
    }
    const bool sane = utc.tm_year >= 1970 && utc.tm_mon >= 1 && utc.tm_mon <= 12 &&
                      utc.tm_mday >= 1 && utc.tm_mday <= 31 && utc.tm_hour <= 23 &&
                      utc.tm_min <= 59 && utc.tm_sec <= 60;
    if (!sane) return Status(StatusCode::kInvalidArgument, "'" + text + "' is no date");
    utc.tm_year -= 1900;
    utc.tm_mon -= 1;
    return static_cast<int64_t>(timegm(&utc));
}

std::string KeyUsage::begin(const ApiKey& key, double now_s, int* retry_after_s) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Use& use = uses_[key.id];
    if (key.max_concurrent > 0 && use.open >= key.max_concurrent) {
        *retry_after_s = 1;
        return "this key may have " + std::to_string(key.max_concurrent) + " requests at once";
    }
    if (key.requests_per_minute > 0) {
        const double capacity = static_cast<double>(key.requests_per_minute);
        if (use.at_s < 0) use.tokens = capacity;
        use.tokens =
            std::min(capacity, use.tokens + std::max(0.0, now_s - use.at_s) * capacity / 60.0);
        use.at_s = now_s;
        if (use.tokens < 1.0) {
            *retry_after_s = static_cast<int>(std::ceil((1.0 - use.tokens) * 60.0 / capacity));
            return "this key may make " + std::to_string(key.requests_per_minute) +
                   " requests a minute";
        }
        use.tokens -= 1.0;
    }
    ++use.open;
    return {};
}

void KeyUsage::end(const ApiKey& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = uses_.find(key.id);
    if (found != uses_.end() && found->second.open > 0) --found->second.open;
}

}  // namespace deepinfer::server
