// Who may come in: the checks between a request's head and its body. No sockets.
#pragma once

#include <optional>
#include <string>

#include "server/state.h"
#include "server/task.h"

namespace deepinfer::server {

/// Fills route, parameter and caller of the exchange (whose request has a head), or gives the
/// answer that ends it: a page of another site, an unknown key, no such route, not ready, too many
/// requests. On success and with *counted, KeyUsage::end() is due when the request is over.
std::optional<Answer> admit(ServerState& state, Plane plane, Exchange& exchange, bool* counted);

/// Fields that let a listed site read the answer (CORS); none for others.
std::vector<std::pair<std::string, std::string>> cors_fields(const ServerConfig& config,
                                                             const HttpRequest& request);

/// The answers that need no work: pages, health. Nothing for other endpoints.
std::optional<Answer> quick_answer(const ServerState& state, const Exchange& exchange);

/// Whether an address is one of this machine's own ("127.0.0.1", "::1").
bool is_loopback(const std::string& address);

}  // namespace deepinfer::server
