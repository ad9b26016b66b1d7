// TenantCounters: how much service each tenant has had, for fair admission.
//
// Virtual token counters: every row of service adds to its tenant's counter, and of the tenants
// that wait, the one with the smallest counter goes first. A tenant that comes back (or is new) is
// lifted to the smallest counter of the active ones, so that time away earns no credit.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace deepinfer {

class TenantCounters {
  public:
    static constexpr int64_t kInputWeight = 1;  ///< per uncached prompt row
    static constexpr int64_t kOutputWeight =
        2;  ///< per output token: a step for one row, not for many

    /// A sequence of the tenant came or left.
    void enter(const std::string& tenant);
    void leave(const std::string& tenant);
    void charge(const std::string& tenant, int64_t amount);
    int64_t value(const std::string& tenant) const;
    size_t size() const { return tenants_.size(); }

  private:
    struct Entry {
        int64_t counter = 0;
        int64_t active = 0;
    };
    /// Smallest counter of the active tenants, at least what it was before (an empty engine keeps
    /// it).
    int64_t floor() const;

    std::map<std::string, Entry> tenants_;
    int64_t last_floor_ = 0;
};

}  // namespace deepinfer
