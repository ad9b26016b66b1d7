// Clock: the engine's only source of time, so that a simulation can supply its own.
#pragma once

#include <chrono>
#include <cstdint>

namespace deepinfer {

class Clock {
  public:
    virtual ~Clock() = default;
    /// Microseconds since some fixed point; never goes back.
    virtual int64_t now_us() const = 0;
};

class SteadyClock final : public Clock {
  public:
    int64_t now_us() const override {
        const auto t = std::chrono::steady_clock::now().time_since_epoch();
        return std::chrono::duration_cast<std::chrono::microseconds>(t).count();
    }
};

}  // namespace deepinfer
