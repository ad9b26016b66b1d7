#include "server/routes.h"

namespace deepinfer::server {
namespace {

constexpr int64_t kServerLimit = -1;
constexpr ErrorShape kOpenAi = ErrorShape::kOpenAi;
constexpr ErrorShape kAnthropic = ErrorShape::kAnthropic;

// clang-format off
constexpr Route kRoutes[] = {
    // The pages hold no data: what they show, they fetch with a key.
    {"GET", "/", Endpoint::kAsset, Access::kPublic, kPlanePublic, 0, "page", kOpenAi, true},
    {"GET", "/admin", Endpoint::kAsset, Access::kPublic, kPlaneAdmin, 0, "page", kOpenAi, true},
    {"GET", "/web/{path}", Endpoint::kAsset, Access::kPublic, kPlaneBoth, 0, "page", kOpenAi, true},
    {"GET", "/health", Endpoint::kHealth, Access::kPublic, kPlaneBoth, 0, "health", kOpenAi, true},
    {"GET", "/ready", Endpoint::kReady, Access::kPublic, kPlaneBoth, 0, "ready", kOpenAi, true},
    {"GET", "/readyz", Endpoint::kReady, Access::kPublic, kPlaneBoth, 0, "ready", kOpenAi, true},
    {"GET", "/version", Endpoint::kVersion, Access::kPublic, kPlaneBoth, 0, "version", kOpenAi, true},

    {"POST", "/v1/chat/completions", Endpoint::kChatCompletions, Access::kInfer, kPlanePublic, kServerLimit, "chat_completions"},
    {"POST", "/chat/completions", Endpoint::kChatCompletions, Access::kInfer, kPlanePublic, kServerLimit, "chat_completions"},
    {"POST", "/v1/completions", Endpoint::kCompletions, Access::kInfer, kPlanePublic, kServerLimit, "completions"},
    {"POST", "/completions", Endpoint::kCompletions, Access::kInfer, kPlanePublic, kServerLimit, "completions"},
    {"POST", "/v1/responses", Endpoint::kResponses, Access::kInfer, kPlanePublic, kServerLimit, "responses"},
    {"POST", "/responses", Endpoint::kResponses, Access::kInfer, kPlanePublic, kServerLimit, "responses"},
    {"GET", "/v1/responses/{id}", Endpoint::kGetResponse, Access::kInfer, kPlanePublic, 0, "get_response"},
    {"GET", "/responses/{id}", Endpoint::kGetResponse, Access::kInfer, kPlanePublic, 0, "get_response"},
    {"DELETE", "/v1/responses/{id}", Endpoint::kDeleteResponse, Access::kInfer, kPlanePublic, 0, "delete_response"},
    {"DELETE", "/responses/{id}", Endpoint::kDeleteResponse, Access::kInfer, kPlanePublic, 0, "delete_response"},
    {"POST", "/v1/messages", Endpoint::kMessages, Access::kInfer, kPlanePublic, kServerLimit, "messages", kAnthropic},
    {"POST", "/messages", Endpoint::kMessages, Access::kInfer, kPlanePublic, kServerLimit, "messages", kAnthropic},
    {"POST", "/anthropic/v1/messages", Endpoint::kMessages, Access::kInfer, kPlanePublic, kServerLimit, "messages", kAnthropic},
    {"POST", "/anthropic/messages", Endpoint::kMessages, Access::kInfer, kPlanePublic, kServerLimit, "messages", kAnthropic},
    {"POST", "/v1/messages/count_tokens", Endpoint::kCountTokens, Access::kInfer, kPlanePublic, kServerLimit, "count_tokens", kAnthropic},
    {"POST", "/messages/count_tokens", Endpoint::kCountTokens, Access::kInfer, kPlanePublic, kServerLimit, "count_tokens", kAnthropic},
    {"POST", "/anthropic/v1/messages/count_tokens", Endpoint::kCountTokens, Access::kInfer, kPlanePublic, kServerLimit, "count_tokens", kAnthropic},
    {"POST", "/anthropic/messages/count_tokens", Endpoint::kCountTokens, Access::kInfer, kPlanePublic, kServerLimit, "count_tokens", kAnthropic},
    {"GET", "/v1/models", Endpoint::kModels, Access::kInfer, kPlanePublic, 0, "models", kOpenAi, true},
    {"GET", "/models", Endpoint::kModels, Access::kInfer, kPlanePublic, 0, "models", kOpenAi, true},
    {"GET", "/v1/models/{path}", Endpoint::kModel, Access::kInfer, kPlanePublic, 0, "model", kOpenAi, true},
    {"GET", "/models/{path}", Endpoint::kModel, Access::kInfer, kPlanePublic, 0, "model", kOpenAi, true},
    {"POST", "/tokenize", Endpoint::kTokenize, Access::kInfer, kPlanePublic, kServerLimit, "tokenize"},
    {"POST", "/v1/tokenize", Endpoint::kTokenize, Access::kInfer, kPlanePublic, kServerLimit, "tokenize"},
    {"POST", "/detokenize", Endpoint::kDetokenize, Access::kInfer, kPlanePublic, kServerLimit, "detokenize"},
    {"POST", "/v1/detokenize", Endpoint::kDetokenize, Access::kInfer, kPlanePublic, kServerLimit, "detokenize"},
    {"DELETE", "/v1/requests/{id}", Endpoint::kCancelRequest, Access::kInfer, kPlanePublic, 0, "cancel_request"},
    {"POST", "/v1/embeddings", Endpoint::kEmbeddings, Access::kInfer, kPlanePublic, kServerLimit, "embeddings", kOpenAi, true},

    {"GET", "/metrics", Endpoint::kMetrics, Access::kMetrics, kPlaneAdmin, 0, "metrics", kOpenAi, true},
    {"GET", "/admin/status", Endpoint::kAdminStatus, Access::kAdmin, kPlaneAdmin, 0, "admin_status", kOpenAi, true},
    {"GET", "/admin/requests", Endpoint::kAdminRequests, Access::kAdmin, kPlaneAdmin, 0, "admin_requests", kOpenAi, true},
    {"GET", "/admin/config", Endpoint::kAdminConfig, Access::kAdmin, kPlaneAdmin, 0, "admin_config", kOpenAi, true},
    {"POST", "/admin/drain", Endpoint::kAdminDrain, Access::kAdmin, kPlaneAdmin, 65536, "admin_drain", kOpenAi, true},
    {"POST", "/admin/undrain", Endpoint::kAdminUndrain, Access::kAdmin, kPlaneAdmin, 65536, "admin_undrain", kOpenAi, true},
    {"POST", "/admin/reload", Endpoint::kAdminReload, Access::kAdmin, kPlaneAdmin, 65536, "admin_reload", kOpenAi, true},
    {"POST", "/admin/log-level", Endpoint::kAdminLogLevel, Access::kAdmin, kPlaneAdmin, 65536, "admin_log_level", kOpenAi, true},
    {"POST", "/admin/cache/flush", Endpoint::kAdminFlushCache, Access::kAdmin, kPlaneAdmin, 65536, "admin_cache_flush", kOpenAi, true},
    {"GET", "/health/generate", Endpoint::kHealthGenerate, Access::kAdmin, kPlaneAdmin, 0, "health_generate"},
};
// clang-format on

/// Whether `path` fits the pattern; *parameter is what the braces stand for.
bool fits(std::string_view pattern, std::string_view path, std::string_view* parameter) {
    const size_t brace = pattern.find('{');
    if (brace == std::string_view::npos) return pattern == path;
    if (path.size() <= brace || path.substr(0, brace) != pattern.substr(0, brace)) return false;
    const std::string_view rest = path.substr(brace);
    // "{path}" takes any rest, "{id}" one segment.
    if (pattern.substr(brace) != "{path}" && rest.find('/') != std::string_view::npos) return false;
    *parameter = rest;
    return true;
}

}  // namespace

std::span<const Route> routes() {
    return kRoutes;
}

RouteMatch find_route(std::string_view method, std::string_view path, Plane plane) {
    if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
    RouteMatch match;
    for (const Route& route : kRoutes) {
        std::string_view parameter;
        if ((route.planes & plane) == 0 || !fits(route.path, path, &parameter)) continue;
        if (route.method == method || (method == "HEAD" && route.method == "GET")) {
            match.route = &route;
            match.parameter = parameter;
            return match;
        }
        if (match.allowed.find(route.method) == std::string::npos)
            match.allowed += (match.allowed.empty() ? "" : ", ") + std::string(route.method);
    }
    return match;
}

std::string percent_decoded(std::string_view text) {
    const auto digit = [](char c) {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        if (c >= 'A' && c <= 'F') return c - 'A' + 10;
        return -1;
    };
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const bool escape = text[i] == '%' && i + 2 < text.size();
        const int high = escape ? digit(text[i + 1]) : -1;
        const int low = escape ? digit(text[i + 2]) : -1;
        if (high < 0 || low < 0) {
            out.push_back(text[i]);
            continue;
        }
        out.push_back(static_cast<char>(high * 16 + low));
        i += 2;
    }
    return out;
}

ErrorShape error_shape(std::string_view path) {
    for (const std::string_view head : {"/v1/messages", "/messages", "/anthropic"}) {
        if (path.substr(0, head.size()) == head) return ErrorShape::kAnthropic;
    }
    return ErrorShape::kOpenAi;
}

}  // namespace deepinfer::server
