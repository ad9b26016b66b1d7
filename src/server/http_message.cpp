#include "server/http_message.h"

#include <cstdio>

namespace deepinfer::server {

const char* reason_phrase(int status) {
    switch (status) {
        case 100:
            return "Continue";
        case 102:
            return "Processing";
        case 200:
            return "OK";
        case 204:
            return "No Content";
        case 304:
            return "Not Modified";
        case 400:
            return "Bad Request";
        case 401:
            return "Unauthorized";
        case 403:
            return "Forbidden";
        case 404:
            return "Not Found";
        case 405:
            return "Method Not Allowed";
        case 408:
            return "Request Timeout";
        case 413:
            return "Content Too Large";
        case 414:
            return "URI Too Long";
        case 415:
            return "Unsupported Media Type";
        case 417:
            return "Expectation Failed";
        case 429:
            return "Too Many Requests";
        case 431:
            return "Request Header Fields Too Large";
        case 500:
            return "Internal Server Error";
        case 501:
            return "Not Implemented";
        case 503:
            return "Service Unavailable";
        case 505:
            return "HTTP Version Not Supported";
        default:
            return "Status";
    }
}

std::string format_head(const HttpReply& reply, int version, bool keep_alive, int64_t body_bytes) {
    std::string out = version == 10 ? "HTTP/1.0 " : "HTTP/1.1 ";
    out += std::to_string(reply.status) + " " + reason_phrase(reply.status) + "\r\n";
    const bool has_body = reply.status != 204 && reply.status != 304;
    if (has_body && !reply.content_type.empty())
        out += "content-type: " + reply.content_type + "\r\n";
    for (const auto& [name, value] : reply.fields) out += name + ": " + value + "\r\n";
    if (body_bytes >= 0) {
        if (has_body) out += "content-length: " + std::to_string(body_bytes) + "\r\n";
    } else if (version == 11) {
        out += "transfer-encoding: chunked\r\n";
    }
    const bool closes = !keep_alive || (body_bytes < 0 && version == 10);
    if (closes) {
        out += "connection: close\r\n";
    } else if (version == 10) {
        out += "connection: keep-alive\r\n";
    }
    return out + "\r\n";
}

void append_chunk(std::string_view bytes, std::string* out) {
    if (bytes.empty()) return;
    char size[20];
    const int n = std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    out->append(size, static_cast<size_t>(n));
    out->append(bytes);
    out->append("\r\n");
}

}  // namespace deepinfer::server
