#include "server/admission.h"

#include <algorithm>

#include "server/api.h"
#include "server/assets.h"

namespace deepinfer::server {
namespace {

bool contains(const std::vector<std::string>& list, std::string_view text) {
    return std::find(list.begin(), list.end(), text) != list.end();
}

/// "localhost:8000" -> "localhost", "[::1]:8000" -> "::1".
std::string_view host_name(std::string_view host) {
    if (!host.empty() && host.front() == '[') {
        const size_t end = host.find(']');
        return end == std::string_view::npos ? std::string_view() : host.substr(1, end - 1);
    }
    return host.substr(0, host.find(':'));
}

/// A name that a page of another site made its own address for (DNS rebinding) is refused while we
/// listen on loopback; behind it stands no key.
bool host_allowed(const ServerConfig& config, Plane plane, const HttpRequest& request) {
    const bool loopback = is_loopback(plane == kPlanePublic ? config.host : config.admin_host);
    if (!loopback && config.allowed_hosts.empty()) return true;
    if (request.version == 10 && request.field("host").empty()) return true;
    const std::string_view name = host_name(request.field("host"));
    if (contains(config.allowed_hosts, name)) return true;
    return loopback && (name == "localhost" || is_loopback(std::string(name)));
}

bool origin_listed(const ServerConfig& config, std::string_view origin) {
    return contains(config.cors_origins, origin) || contains(config.cors_origins, "*");
}

/// Browsers name the page that a request comes from; ours or a listed one may call.
bool origin_allowed(const ServerConfig& config, const HttpRequest& request) {
    const std::string_view origin = request.field("origin");
    if (origin.empty() || origin_listed(config, origin)) return true;
    const size_t scheme = origin.find("://");
    return scheme != std::string_view::npos && origin.substr(scheme + 3) == request.field("host");
}

std::string_view presented_key(const HttpRequest& request) {
    constexpr std::string_view kBearer = "bearer ";
    const std::string_view authorization = request.field("authorization");
    if (authorization.size() > kBearer.size()) {
        const bool bearer =
            std::equal(kBearer.begin(), kBearer.end(), authorization.begin(), [](char a, char b) {
                return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
            });
        if (bearer) return authorization.substr(kBearer.size());
    }
    return request.field("x-api-key");
}

int scopes_for(Access access) {
    switch (access) {
        case Access::kInfer:
            return kScopeInfer;
        case Access::kMetrics:
            return kScopeMetrics | kScopeAdmin;
        case Access::kAdmin:
            return kScopeAdmin;
        case Access::kPublic:
            break;
    }
    return 0;
}

Answer refusal(const Exchange& exchange,
               int status,
               const char* type,
               const std::string& message,
               const char* code = "") {
    return error_answer(error_shape(exchange.request.path), api_error(status, type, message, code));
}

/// Checks the key; fills the caller.
std::optional<Answer> authenticate(ServerState& state, Exchange& exchange) {
    const std::shared_ptr<const KeyRing> keys = state.keys();
    const bool is_public = exchange.route != nullptr && exchange.route->access == Access::kPublic;
    if (is_public) return std::nullopt;
    if (!keys) {
        exchange.caller.scopes = kScopeInfer | kScopeMetrics | kScopeAdmin;
        return std::nullopt;
    }
    const std::string_view presented = presented_key(exchange.request);
    const ApiKey* key = presented.empty() ? nullptr : keys->find(presented);
    const bool expired = key != nullptr && key->expires_s > 0 && unix_seconds() >= key->expires_s;
    if (key == nullptr || expired) {
        Answer answer = refusal(exchange,
                                401,
                                "authentication_error",
                                presented.empty() ? "an API key is needed: send it as "
                                                    "'Authorization: Bearer KEY' or 'x-api-key: "
                                                    "KEY'"
                                : expired         ? "this API key has expired"
                                                  : "this API key is not known",
                                "invalid_api_key");
        answer.reply.fields.emplace_back("www-authenticate", "Bearer");
        return answer;
    }
    exchange.caller = *key;
    if (exchange.route != nullptr && (key->scopes & scopes_for(exchange.route->access)) == 0)
        return refusal(exchange, 403, "permission_error", "this API key may not use this route");
    return std::nullopt;
}

Answer preflight(const ServerConfig& config, const Exchange& exchange) {
    Answer answer;
    if (!origin_listed(config, exchange.request.field("origin")))
        return refusal(exchange, 403, "permission_error", "this origin is not listed here");
    answer.reply.status = 204;
    answer.reply.fields = {
        {"access-control-allow-methods", "GET, POST, DELETE"},
        {"access-control-allow-headers",
         "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, "
         "x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, "
         "x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, "
         "x-stainless-timeout, openai-beta, openai-organization, openai-project"},
        {"access-control-max-age", "600"}};
    return answer;
}

}  // namespace

bool is_loopback(const std::string& address) {
    if (address == "::1" || address == "localhost") return true;
    return address.rfind("127.", 0) == 0 &&
           address.find_first_not_of("0123456789.") == std::string::npos;
}

std::vector<std::pair<std::string, std::string>> cors_fields(const ServerConfig& config,
                                                             const HttpRequest& request) {
    const std::string_view origin = request.field("origin");
    if (config.cors_origins.empty()) return {};
    if (origin.empty() || !origin_listed(config, origin)) return {{"vary", "origin"}};
    return {{"vary", "origin"},
            {"access-control-allow-origin", std::string(origin)},
            {"access-control-expose-headers", "x-request-id, request-id, retry-after"}};
}

std::optional<Answer> admit(ServerState& state, Plane plane, Exchange& exchange, bool* counted) {
    const HttpRequest& request = exchange.request;
    *counted = false;
    if (!host_allowed(state.config, plane, request))
        return refusal(exchange,
                       403,
                       "permission_error",
                       "this server does not answer to this Host name; see --allowed-host");
    if (request.method == "OPTIONS" && !request.field("access-control-request-method").empty())
        return preflight(state.config, exchange);
    if (!origin_allowed(state.config, request))
        return refusal(exchange,
                       403,
                       "permission_error",
                       "pages of this origin may not call here; see --cors-origin");
    RouteMatch match = find_route(request.method, request.path, plane);
    exchange.route = match.route;
    exchange.parameter = percent_decoded(match.parameter);
    if (std::optional<Answer> answer = authenticate(state, exchange)) return answer;
    if (match.route == nullptr && !match.allowed.empty()) {
        Answer answer = refusal(exchange,
                                405,
                                "invalid_request_error",
                                request.path + " takes " + match.allowed,
                                "method_not_allowed");
        answer.reply.fields.emplace_back("allow", match.allowed);
        return answer;
    }
    if (match.route == nullptr)
        return refusal(
            exchange, 404, "not_found_error", "there is no route " + request.path.substr(0, 200));
    if (state.backend() == nullptr && !match.route->while_loading)
        return refusal(exchange, 503, "overloaded_error", "the model is being loaded", "loading");
    if (state.phase == Phase::kDead && !match.route->while_loading)
        return refusal(exchange, 503, "overloaded_error", "the engine is dead", "dead");
    const std::string_view coding = request.field("content-encoding");
    if (!coding.empty() && coding != "identity") {
        Answer answer = refusal(exchange,
                                415,
                                "invalid_request_error",
                                "request bodies are taken as they are, without Content-Encoding");
        answer.reply.fields.emplace_back("accept-encoding", "identity");
        return answer;
    }
    if (match.route->access == Access::kInfer && !exchange.caller.id.empty()) {
        int retry_after_s = 1;
        const double now =
            std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
                .count();
        const std::string limit = state.key_usage.begin(exchange.caller, now, &retry_after_s);
        if (!limit.empty()) {
            Answer answer =
                refusal(exchange, 429, "rate_limit_error", limit, "rate_limit_exceeded");
            for (auto& [name, value] : answer.reply.fields)
                if (name == "retry-after") value = std::to_string(retry_after_s);
            return answer;
        }
        *counted = true;
    }
    return std::nullopt;
}

std::optional<Answer> quick_answer(const ServerState& state, const Exchange& exchange) {
    Answer answer;
    const Phase phase = state.phase;
    switch (exchange.route->endpoint) {
        case Endpoint::kHealth:
            answer.reply.body = "{\"status\": \"ok\"}";
            return answer;
        case Endpoint::kReady:
            answer.reply.status = phase == Phase::kReady ? 200 : 503;
            answer.reply.body = std::string("{\"status\": \"") + phase_name(phase) + "\"}";
            return answer;
        case Endpoint::kVersion:
            answer.reply.body = "{\"version\": \"" DEEPINFER_VERSION "\"}";
            return answer;
        case Endpoint::kAsset:
            break;
        default:
            return std::nullopt;
    }
    const std::optional<Asset> asset = find_asset(exchange.request.path);
    if (!asset) return refusal(exchange, 404, "not_found_error", "there is no such page");
    answer.reply.content_type = std::string(asset->content_type);
    answer.reply.fields = {{"content-security-policy", std::string(kContentSecurityPolicy)},
                           {"x-content-type-options", "nosniff"},
                           {"referrer-policy", "no-referrer"},
                           {"cross-origin-opener-policy", "same-origin"},
                           {"cross-origin-resource-policy", "same-origin"},
                           {"cache-control", "no-cache"},
                           {"etag", asset->etag}};
    if (exchange.request.field("if-none-match") == asset->etag) {
        answer.reply.status = 304;
    } else {
        answer.reply.body = std::string(asset->bytes);
    }
    return answer;
}

}  // namespace deepinfer::server
