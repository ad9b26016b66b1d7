// The engine as Python holds it, and statuses as exceptions. Nothing here needs the interpreter.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "deepinfer/engine.h"
#include "deepinfer/status.h"

namespace deepinfer::python {

/// A Status on its way through nanobind; translated to a Python exception in bind.cpp.
struct StatusError : std::exception {
    explicit StatusError(Status s) : status(std::move(s)) {}
    const char* what() const noexcept override { return status.message().c_str(); }
    Status status;
};

inline void check(const Status& status) {
    if (!status.ok()) throw StatusError(status);
}

template <typename T>
T take(Result<T> result) {
    check(result.status());
    return std::move(result).value();
}

/// An Engine that can be closed while others still hold the handle. Thread-safe.
class EngineHandle {
  public:
    explicit EngineHandle(const EngineConfig& config) : engine_(take(Engine::create(config))) {}

    /// Null once closed. Keep the result only for the length of a call: the last owner stops the
    /// engine.
    std::shared_ptr<Engine> get_or_null() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return engine_;
    }
    /// Throws kUnavailable once closed.
    std::shared_ptr<Engine> get() const {
        std::shared_ptr<Engine> engine = get_or_null();
        if (!engine) throw StatusError({StatusCode::kUnavailable, "the engine was closed"});
        return engine;
    }

    /// Aborts what is left (every request still gets its last output) and stops the threads.
    void close() {
        std::shared_ptr<Engine> last;  // destroyed after the lock was released
        const std::lock_guard<std::mutex> lock(mutex_);
        last.swap(engine_);
    }

  private:
    mutable std::mutex mutex_;
    std::shared_ptr<Engine> engine_;
};

}  // namespace deepinfer::python
