// Turns of the Responses protocol, kept so that a client may name the turn before instead of
// sending it again. Bounded in turns (in all and per owner), bytes and age; the oldest go first.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "deepinfer/server.h"
#include "server/task.h"

namespace deepinfer::server {

struct StoredTurn {
    std::string owner;     ///< tenant
    std::string response;  ///< the answer's JSON
    /// Items of the conversation up to and with this answer, JSON joined by commas (no brackets).
    std::string items;
};

class ResponseStore {
  public:
    explicit ResponseStore(const ServerLimits& limits) : limits_(limits) {}

    bool enabled() const { return limits_.stored_turns > 0; }
    /// A turn that is larger than the whole store is not kept.
    void put(const std::string& id, StoredTurn turn, SteadyTime now);
    /// Null for an unknown id, another owner's, or one that has grown too old.
    std::shared_ptr<const StoredTurn> get(const std::string& id,
                                          const std::string& owner,
                                          SteadyTime now);
    bool remove(const std::string& id, const std::string& owner);
    size_t turns() const;
    int64_t bytes() const;

  private:
    struct Slot {
        std::shared_ptr<const StoredTurn> turn;
        SteadyTime at;
        std::list<std::string>::iterator place;
    };
    void erase(std::map<std::string, Slot>::iterator slot);
    void expire(SteadyTime now);

    const ServerLimits limits_;
    mutable std::mutex mutex_;
    std::map<std::string, Slot> slots_;
    std::list<std::string> by_age_;  // oldest first
    std::map<std::string, int64_t> turns_of_;
    int64_t bytes_ = 0;
};

}  // namespace deepinfer::server
