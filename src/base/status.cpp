#include "deepinfer/status.h"

namespace deepinfer {

const char* status_code_name(StatusCode code) {
    switch (code) {
        case StatusCode::kOk:
            return "ok";
        case StatusCode::kInvalidArgument:
            return "invalid_argument";
        case StatusCode::kInvalidFile:
            return "invalid_file";
        case StatusCode::kNotFound:
            return "not_found";
        case StatusCode::kUnimplemented:
            return "unimplemented";
        case StatusCode::kOutOfRange:
            return "out_of_range";
        case StatusCode::kResourceExhausted:
            return "resource_exhausted";
        case StatusCode::kQueueFull:
            return "queue_full";
        case StatusCode::kCancelled:
            return "cancelled";
        case StatusCode::kUnavailable:
            return "unavailable";
        case StatusCode::kInternal:
            return "internal";
    }
    return "unknown";
}

std::string Status::to_string() const {
    if (ok()) return "ok";
    return std::string(status_code_name(code_)) + ": " + message_;
}

}  // namespace deepinfer
