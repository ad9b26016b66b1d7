// Work of a request that takes long, on threads of a pool that holds up nobody else: a fetch, a
// compilation. The connection polls a task meanwhile, which then is what came of it.
#pragma once

#include <functional>
#include <string>

#include "server/api.h"

namespace deepinfer::server {

struct LaterWork {
    WorkPool* pool = nullptr;
    std::string lane;  ///< of the pool
    ErrorShape shape = ErrorShape::kOpenAi;
    bool stream = false;
    Milliseconds most{0};      ///< from now; then the answer is `late`
    recipe::ApiError late;     ///< it took too long
    recipe::ApiError crowded;  ///< the pool has no room
    /// Runs once, on a thread of the pool, unless nobody waits any more. Gets an Exchange of its
    /// own, without the body. `given_up` becomes true when nobody waits for the answer. What it
    /// takes from `held` is given back when the request has been answered.
    std::function<Answer(Exchange& exchange, BodyShare& held, const std::atomic<bool>& given_up)>
        work;
};

/// Errors are answers in the work's shape, never events of a stream.
Answer answer_later(ServerState& state, Exchange& exchange, LaterWork work);

}  // namespace deepinfer::server
