// HTTP from outside: any bytes, cut anywhere, are requests, "more", or one typed fault. However
// they are cut, the requests are the same (else a front end and this server could disagree).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_parser.h"
#include "server/response_reader.h"
#include "server/routes.h"

namespace {

using namespace deepinfer;
using server::RequestReader;
using State = RequestReader::State;

struct Seen {
    std::vector<std::string> requests;
    int fault = 0;
    bool operator==(const Seen&) const = default;
};

void drain(RequestReader& reader, Seen* seen) {
    for (;;) {
        if (reader.state() == State::kBody) {
            reader.limit_body(4096);
            reader.feed({});
        }
        if (reader.state() != State::kReady) break;
        const server::HttpRequest request = reader.take();
        std::string text = request.method + " " + request.path + "\n" + request.body;
        for (const auto& [name, value] : request.fields) text += "\n" + name + ":" + value;
        seen->requests.push_back(text);
        (void)server::find_route(request.method, request.path, server::kPlanePublic);
        (void)server::find_route(request.method, request.path, server::kPlaneAdmin);
    }
    if (reader.state() == State::kFault) seen->fault = reader.fault().status;
}

Seen read(std::string_view bytes, size_t step) {
    ServerLimits limits;
    limits.request_line_bytes = 300;
    limits.header_bytes = 600;
    limits.header_fields = 8;
    limits.body_bytes = 8192;
    RequestReader reader(limits);
    Seen seen;
    for (size_t at = 0; at < bytes.size() && reader.state() != State::kFault; at += step) {
        reader.feed(bytes.substr(at, step));
        drain(reader, &seen);
    }
    return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const Seen whole = read(bytes, size + 1);
    const Seen single = read(bytes, 1);
    const Seen pieces = read(bytes, 7);
    // Of a faulty rest, the kind of fault may depend on how much of it was seen.
    if (whole.requests != single.requests || whole.requests != pieces.requests) std::abort();
    if ((whole.fault == 0) != (single.fault == 0)) std::abort();

    server::ResponseReader response;
    std::string body;
    response.feed(bytes, &body);
    response.end();
    return 0;
}
