// Boost.Beast's message parser behind RequestReader; this file alone includes it.
//
// Bytes of a client must not end the program, so a failed assertion of the parser is an exception
// here, and that message is refused.
#define BOOST_ENABLE_ASSERT_HANDLER
#include "server/http_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace boost {
void assertion_failed(char const* what, char const*, char const*, long) {
    // Of basic_parser::parse_chunk_header (1.81), where it comes back to a last chunk: true only of
    // one behind another chunk. The last chunk of an empty body, "0" and a line's end, has three
    // bytes, and what follows the assertion reads it rightly.
    if (std::string_view(what) == "n >= 5") return;
    throw std::logic_error(what);
}
void assertion_failed_msg(char const* what, char const*, char const*, char const*, long) {
    throw std::logic_error(what);
}
}  // namespace boost

namespace deepinfer::server {
namespace {

namespace http = boost::beast::http;

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), [](char c) {
        return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    });
    return out;
}

std::string_view view(boost::beast::string_view text) {
    return {text.data(), text.size()};
}

/// Fields whose second occurrence two readers could take differently.
bool must_be_single(std::string_view name) {
    return name == "host" || name == "content-length" || name == "transfer-encoding" ||
           name == "authorization" || name == "x-api-key" || name == "content-type" ||
           name == "origin" || name == "expect";
}

bool is_visible(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

HttpFault fault_of(const boost::beast::error_code& ec, const ServerLimits& limits) {
    if (ec == http::error::header_limit)
        return {
            431,
            "the request's head is longer than " + std::to_string(limits.header_bytes) + " bytes"};
    if (ec == http::error::body_limit || ec == http::error::buffer_overflow)
        return {413, "the request body is larger than this route takes"};
    if (ec == http::error::bad_version) return {505, "this server speaks HTTP/1.1 and HTTP/1.0"};
    return {400, "the request is no valid HTTP: " + ec.message()};
}

}  // namespace

struct RequestReader::Impl {
    using Parser = http::request_parser<http::string_body>;

    explicit Impl(const ServerLimits& l) : limits(l) { reset(); }

    void reset() {
        parser.emplace();
        // Ours is exact (check_raw_head); this one only has to be larger.
        parser->header_limit(static_cast<uint32_t>(2 * limits.header_bytes + 1024));
        body_limit = limits.body_bytes;
        parser->body_limit(static_cast<uint64_t>(body_limit));
        head = HttpRequest();
        state = State::kHead;
    }

    void fail(int status, std::string message) {
        state = State::kFault;
        fault = {status, std::move(message)};
    }

    /// What Beast lets through and a strict reader does not.
    void check_raw_head(std::string_view bytes, bool complete);
    void read_head();
    void advance() {
        try {
            read_on();
        } catch (const std::logic_error&) {
            fail(400, "the request's chunks or trailers cannot be read");
        }
    }
    void read_on();

    const ServerLimits limits;
    std::optional<Parser> parser;
    std::string pending;  // bytes not yet read
    HttpRequest head;
    HttpFault fault;
    State state = State::kHead;
    int64_t body_limit = 0;
};

void RequestReader::Impl::check_raw_head(std::string_view bytes, bool complete) {
    for (size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] == '\0') return fail(400, "the request's head holds a zero byte");
        if (bytes[i] == '\n' && (i == 0 || bytes[i - 1] != '\r'))
            return fail(400, "a line of the request's head ends without a carriage return");
    }
    const size_t line = std::min(bytes.find("\r\n"), bytes.size());
    if (static_cast<int64_t>(line) > limits.request_line_bytes)
        return fail(414,
                    "the request line is longer than " + std::to_string(limits.request_line_bytes) +
                        " bytes");
    const std::string_view fields = bytes.substr(line);
    if (fields.find("\r\n ") != std::string_view::npos ||
        fields.find("\r\n\t") != std::string_view::npos)
        return fail(400, "a header field goes on in the next line, which HTTP/1.1 forbids");
    int64_t num_breaks = 0;
    for (size_t at = 0; (at = fields.find("\r\n", at)) != std::string_view::npos; at += 2)
        ++num_breaks;
    // The first break ends the request line, the last of a whole head is the empty line.
    if (num_breaks - 1 - (complete ? 1 : 0) > limits.header_fields)
        return fail(
            431,
            "the request has more than " + std::to_string(limits.header_fields) + " header fields");
    if (static_cast<int64_t>(bytes.size()) > limits.header_bytes)
        fail(431,
             "the request's head is longer than " + std::to_string(limits.header_bytes) + " bytes");
}

void RequestReader::Impl::read_head() {
    const auto& message = parser->get();
    head.method = std::string(view(message.method_string()));
    head.target = std::string(view(message.target()));
    head.version = static_cast<int>(message.version());
    head.keep_alive = message.keep_alive();
    if (head.version != 11 && head.version != 10)
        return fail(505, "this server speaks HTTP/1.1 and HTTP/1.0");
    if (head.target.empty() || !is_visible(head.target))
        return fail(400, "the request target is no valid path");
    // Absolute form ("GET http://host/path"), as to a proxy: the path counts, Host as sent.
    std::string_view target = head.target;
    if (target[0] != '/' && target != "*") {
        const size_t scheme = target.find("://");
        if (scheme == std::string_view::npos) return fail(400, "the request target is no path");
        const size_t slash = target.find('/', scheme + 3);
        target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
    }
    head.path = std::string(target.substr(0, target.find_first_of("?#")));
    for (const auto& field : message) {
        const std::string name = lower(view(field.name_string()));
        const std::string value(view(field.value()));
        auto found = std::find_if(
            head.fields.begin(), head.fields.end(), [&](const auto& f) { return f.first == name; });
        if (found == head.fields.end()) {
            head.fields.emplace_back(name, value);
        } else if (must_be_single(name)) {
            return fail(400, "the header field " + name + " occurs twice");
        } else {
            found->second += ", " + value;
        }
    }
    if (static_cast<int64_t>(std::distance(message.begin(), message.end())) > limits.header_fields)
        return fail(
            431,
            "the request has more than " + std::to_string(limits.header_fields) + " header fields");
    if (head.version == 11 && head.field("host").empty())
        return fail(400, "the Host header field is missing");
    const std::string coding = lower(head.field("transfer-encoding"));
    if (!coding.empty() && (coding != "chunked" || head.version == 10))
        return fail(501, "the only transfer encoding that this server takes is chunked");
    const std::string expect = lower(head.field("expect"));
    if (!expect.empty() && expect != "100-continue")
        return fail(417, "the only expectation that this server meets is 100-continue");
    head.expects_continue = !expect.empty() && head.version == 11;
    const std::string_view said = head.field("content-length");
    if (!std::all_of(said.begin(), said.end(), [](char c) { return c >= '0' && c <= '9'; }))
        return fail(400, "Content-Length is no number");
    const auto length = parser->content_length();
    if (length && *length > static_cast<uint64_t>(body_limit))
        return fail(413,
                    "the request body has " + std::to_string(*length) +
                        " bytes, this route takes " + std::to_string(body_limit));
    state = State::kBody;
}

void RequestReader::Impl::read_on() {
    boost::beast::error_code ec;
    if (state == State::kHead) {
        // An empty line before a request is left over from a body that some clients end with one.
        while (pending.compare(0, 2, "\r\n") == 0) pending.erase(0, 2);
        const size_t end = pending.find("\r\n\r\n");
        const bool complete = end != std::string::npos;
        const size_t size = complete ? end + 4 : pending.size();
        if (size > 0) check_raw_head(std::string_view(pending).substr(0, size), complete);
        if (state == State::kFault || !complete) return;
        // The head alone: the caller looks at it before a byte of the body is read.
        parser->eager(false);
        const size_t used = parser->put(boost::asio::buffer(pending.data(), size), ec);
        pending.erase(0, used);
        if (ec || !parser->is_header_done()) {
            const HttpFault f = fault_of(ec, limits);
            return fail(f.status, f.message);
        }
        read_head();
    } else {
        parser->eager(true);
        while (!pending.empty() && state == State::kBody && !parser->is_done()) {
            const size_t used = parser->put(boost::asio::buffer(pending), ec);
            pending.erase(0, used);
            if (ec && ec != http::error::need_more) {
                const HttpFault f = fault_of(ec, limits);
                return fail(f.status, f.message);
            }
            if (used > 0) continue;
            // A chunk's head and the trailers are read whole and count as no body.
            if (static_cast<int64_t>(pending.size()) > limits.header_bytes)
                return fail(431,
                            "a chunk's head or the trailers are longer than " +
                                std::to_string(limits.header_bytes) + " bytes");
            break;
        }
    }
    if (state == State::kBody && parser->is_done()) state = State::kReady;
}

RequestReader::RequestReader(const ServerLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestReader::~RequestReader() = default;

void RequestReader::feed(std::string_view bytes) {
    if (impl_->state == State::kFault) return;
    impl_->pending.append(bytes);
    impl_->advance();
}
RequestReader::State RequestReader::state() const {
    return impl_->state;
}
const HttpRequest& RequestReader::head() const {
    return impl_->head;
}
const HttpFault& RequestReader::fault() const {
    return impl_->fault;
}
int64_t RequestReader::said_body_bytes() const {
    return static_cast<int64_t>(impl_->parser->content_length().value_or(0));
}
int64_t RequestReader::body_bytes() const {
    return static_cast<int64_t>(impl_->parser->get().body().size());
}
void RequestReader::limit_body(int64_t bytes) {
    Impl& r = *impl_;
    r.body_limit = std::min(r.body_limit, bytes);
    r.parser->body_limit(static_cast<uint64_t>(r.body_limit));
    const auto length = r.parser->content_length();
    if (length && *length > static_cast<uint64_t>(r.body_limit))
        r.fail(413,
               "the request body has " + std::to_string(*length) + " bytes, this route takes " +
                   std::to_string(r.body_limit));
}
HttpRequest RequestReader::take() {
    HttpRequest out = std::move(impl_->head);
    out.body = std::move(impl_->parser->get().body());
    impl_->reset();
    impl_->advance();
    return out;
}
bool RequestReader::idle() const {
    return impl_->state == State::kHead && impl_->pending.empty();
}
size_t RequestReader::buffered() const {
    return impl_->pending.size();
}

}  // namespace deepinfer::server
