// Pictures of a conversation: out of the request (or from where its URLs point), within the limits,
// counted in tokens.
#pragma once

#include <functional>
#include <memory>

#include "server/api.h"

namespace deepinfer::server {

/// Runs `next` with the pictures of `prepared` in place and its prompt expanded: at once where the
/// request itself holds them, otherwise behind a task that fetches them first. Errors are answers
/// in `shape`, never events of a stream. `next` may run on another thread, after this call has
/// returned; it gets an Exchange of its own.
Answer with_pictures(
    ServerState& state,
    Exchange& exchange,
    ErrorShape shape,
    bool stream,
    PreparedConversation prepared,
    std::function<Answer(Exchange& exchange, PreparedConversation& prepared)> next);

/// What the engine says of pictures is the client's fault, limits included.
recipe::ApiError picture_error(const Status& status, recipe::Protocol protocol);

}  // namespace deepinfer::server
