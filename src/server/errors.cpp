// Errors in the shapes of the protocols.
#include "recipe/utf8_stream.h"
#include "server/api.h"

namespace deepinfer::server {

using recipe::ApiError;

Answer error_answer(ErrorShape shape, const ApiError& error) {
    ApiError shown = error;
    // The field at the top, as clients compare it; the message keeps the whole place.
    shown.param = shown.param.substr(0, shown.param.find_first_of(".["));
    if (shape == ErrorShape::kAnthropic) {
        if (shown.status == 413) shown.type = "request_too_large";
        if (shown.status == 500) shown.type = "api_error";
    }
    Answer answer;
    answer.reply.status = shown.status;
    answer.reply.body =
        recipe::error_body(shape == ErrorShape::kAnthropic ? recipe::Protocol::kMessages
                                                           : recipe::Protocol::kChatCompletions,
                           shown);
    if (shown.status == 429 || shown.status == 503)
        answer.reply.fields.emplace_back("retry-after", "1");
    answer.error = shown.message;
    return answer;
}

ApiError api_error(int status, std::string type, std::string message, std::string code) {
    ApiError error;
    error.status = status;
    error.type = std::move(type);
    error.message = recipe::valid_utf8(message);
    error.code = std::move(code);
    return error;
}

ApiError bad_request(std::string message, std::string param) {
    ApiError error = api_error(400, "invalid_request_error", std::move(message));
    error.param = recipe::valid_utf8(param);
    return error;
}

ApiError from_status(const Status& status) {
    switch (status.code()) {
        case StatusCode::kInvalidArgument:
        case StatusCode::kUnimplemented: {
            // The engine's sentences begin with the field they are about.
            const std::string word = status.message().substr(
                0, status.message().find_first_not_of("abcdefghijklmnopqrstuvwxyz_"));
            const bool field = word.find('_') != std::string::npos || word == "temperature" ||
                               word == "n" || word == "stop" || word == "logprobs";
            return bad_request(status.message(), field ? word : "");
        }
        case StatusCode::kOutOfRange: {
            ApiError error = bad_request(status.message());
            error.code = "context_length_exceeded";
            return error;
        }
        case StatusCode::kQueueFull:
            return api_error(429, "rate_limit_error", status.message(), "queue_full");
        case StatusCode::kUnavailable:
        case StatusCode::kResourceExhausted:
            return api_error(503, "overloaded_error", status.message());
        default:
            return api_error(500, "internal_error", status.message(), "server_error");
    }
}

}  // namespace deepinfer::server
