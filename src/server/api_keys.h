// API keys: who may call, for whom, what, and how often. The file holds digests, never keys.
//
//   keys:
//     - id: alice                       # shown in logs
//       sha256: 9f86d08…                # of the key: printf %s "$KEY" | sha256sum
//       tenant: team-a                  # optional; shares its cache and Responses; default: the id
//       scopes: [infer]                 # infer, metrics, admin
//       expires: 2027-06-30T00:00:00Z   # optional
//       max_concurrent: 8               # optional: requests at once
//       requests_per_minute: 60         # optional
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer::server {

enum Scope : int { kScopeInfer = 1, kScopeMetrics = 2, kScopeAdmin = 4 };

struct ApiKey {
    std::string id;
    std::array<unsigned char, 32> digest{};
    std::string tenant;
    int scopes = 0;
    int64_t expires_s = 0;  ///< seconds since 1970; 0: never
    int64_t max_concurrent = 0;
    int64_t requests_per_minute = 0;
};

class KeyRing {
  public:
    /// kNotFound, or kInvalidArgument that names the entry. An empty list is refused: a server that
    /// nobody can call is a mistake.
    static Result<std::shared_ptr<const KeyRing>> load(const std::string& path);
    static Result<std::shared_ptr<const KeyRing>> from_keys(std::vector<ApiKey> keys);

    /// The key that was presented, or null. Takes the same time whichever it is.
    const ApiKey* find(std::string_view presented) const;
    size_t size() const { return keys_.size(); }

  private:
    std::vector<ApiKey> keys_;
};

/// "YYYY-MM-DD" or "YYYY-MM-DDThh:mm:ssZ" as seconds since 1970; kInvalidArgument otherwise.
Result<int64_t> parse_utc(const std::string& text);

/// What the keys have open and spent; survives a reload. Any thread.
class KeyUsage {
  public:
    /// "" and counts the request as open, or the sentence that says which limit it met and
    /// *retry_after_s.
    std::string begin(const ApiKey& key, double now_s, int* retry_after_s);
    void end(const ApiKey& key);

  private:
    struct Use {
        int64_t open = 0;
        double tokens = 0;  ///< of the bucket that refills by requests_per_minute
        double at_s = -1;
    };
    std::mutex mutex_;
    std::map<std::string, Use> uses_;  // by id; ids come from the file, so the set is bounded
};

}  // namespace deepinfer::server
