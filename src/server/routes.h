// The route table: what exists, who may call it, on which listener, and how large its body may be.
// Everything that is not in it does not exist; a route that needs a key is never reached without
// one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::server {

enum class Access { kPublic, kInfer, kMetrics, kAdmin };

enum class Endpoint {
    kAsset,
    kHealth,
    kReady,
    kVersion,
    kChatCompletions,
    kCompletions,
    kResponses,
    kGetResponse,
    kDeleteResponse,
    kMessages,
    kCountTokens,
    kModels,
    kModel,
    kTokenize,
    kDetokenize,
    kCancelRequest,
    kEmbeddings,
    kMetrics,
    kAdminStatus,
    kAdminRequests,
    kAdminConfig,
    kAdminDrain,
    kAdminUndrain,
    kAdminReload,
    kAdminLogLevel,
    kAdminFlushCache,
    kHealthGenerate,
};

enum Plane : int { kPlanePublic = 1, kPlaneAdmin = 2, kPlaneBoth = 3 };

/// Shape of error bodies.
enum class ErrorShape { kOpenAi, kAnthropic };

struct Route {
    std::string_view method;
    /// "/v1/responses/{id}": the last segment may be any one; "/web/{path}": any rest.
    std::string_view path;
    Endpoint endpoint;
    Access access;
    int planes;
    int64_t body_bytes;     ///< 0: no body; −1: the server's limit
    std::string_view name;  ///< label of metrics and logs
    ErrorShape errors = ErrorShape::kOpenAi;
    bool while_loading = false;  ///< answers although no engine is there yet
};

std::span<const Route> routes();

struct RouteMatch {
    const Route* route = nullptr;  ///< null: see `allowed`
    std::string_view parameter;    ///< what the braces stand for, as sent
    std::string allowed;           ///< methods that the path has; "" if there is no such path
};

/// `method` HEAD counts as GET.
RouteMatch find_route(std::string_view method, std::string_view path, Plane plane);

/// "a%2Fb" -> "a/b"; a percent sign that begins no escape stays.
std::string percent_decoded(std::string_view text);

/// The error shape that a path's clients expect, known or not.
ErrorShape error_shape(std::string_view path);

}  // namespace deepinfer::server
