// An HTTP request and its answer, apart from any socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::server {

/// A request whose head is valid. Field names are lower case; a name occurs once unless the
/// protocol allows a list (then joined by ", ").
struct HttpRequest {
    std::string method;
    std::string target;  ///< as sent
    std::string path;    ///< target without the query
    std::vector<std::pair<std::string, std::string>> fields;
    int version = 11;        ///< 10 or 11
    bool keep_alive = true;  ///< the client would like to go on with this connection
    bool expects_continue = false;
    std::string body;

    /// "" if the field is absent.
    std::string_view field(std::string_view lower_case_name) const {
        for (const auto& [name, value] : fields)
            if (name == lower_case_name) return value;
        return {};
    }
};

struct HttpReply {
    int status = 200;
    std::string content_type = "application/json";
    std::vector<std::pair<std::string, std::string>> fields;  ///< further ones
    std::string body;
};

const char* reason_phrase(int status);

/// The head of an answer up to the empty line. `body_bytes` < 0: chunked (or, for HTTP/1.0, until
/// the connection ends).
std::string format_head(const HttpReply& reply, int version, bool keep_alive, int64_t body_bytes);

/// Appends `bytes` as one chunk of a chunked body; nothing for none.
void append_chunk(std::string_view bytes, std::string* out);

}  // namespace deepinfer::server
