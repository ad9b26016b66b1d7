// Requests as bytes: framing, limits, and what two readers could take differently.
#include "server/http_parser.h"

#include <gtest/gtest.h>

#include <memory>

namespace deepinfer::server {
namespace {

using State = RequestReader::State;

std::unique_ptr<RequestReader> read(const std::string& bytes, const ServerLimits& limits = {}) {
    auto reader = std::make_unique<RequestReader>(limits);
    reader->feed(bytes);
    if (reader->state() == State::kBody) reader->feed({});
    return reader;
}

int fault_of(const std::string& bytes, const ServerLimits& limits = {}) {
    const auto reader = read(bytes, limits);
    return reader->state() == State::kFault ? reader->fault().status : 0;
}

TEST(RequestReader, ReadsARequestCutAtEveryPlace) {
    const std::string text =
        "POST /v1/x?a=1 HTTP/1.1\r\nHost: h\r\nX-Two: a\r\nx-two: b\r\nContent-Length: "
        "5\r\n\r\nhello";
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        RequestReader reader(ServerLimits{});
        reader.feed(std::string_view(text).substr(0, cut));
        reader.feed(std::string_view(text).substr(cut));
        if (reader.state() == State::kBody) reader.feed({});
        ASSERT_EQ(reader.state(), State::kReady) << cut;
        const HttpRequest request = reader.take();
        EXPECT_EQ(request.method, "POST");
        EXPECT_EQ(request.path, "/v1/x");
        EXPECT_EQ(request.field("x-two"), "a, b");
        EXPECT_EQ(request.body, "hello");
        EXPECT_TRUE(request.keep_alive);
        EXPECT_TRUE(reader.idle());
    }
}

TEST(RequestReader, ReadsChunkedBodiesAndTheNextRequestBehindThem) {
    const std::string text =
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        RequestReader reader(ServerLimits{});
        reader.feed(std::string_view(text).substr(0, cut));
        reader.feed(std::string_view(text).substr(cut));
        if (reader.state() == State::kBody) reader.feed({});
        ASSERT_EQ(reader.state(), State::kReady) << cut;
        EXPECT_EQ(reader.take().body, "abcde");
        ASSERT_EQ(reader.state(), State::kReady) << cut;
        EXPECT_EQ(reader.take().path, "/next");
        EXPECT_TRUE(reader.idle());
    }
}

TEST(RequestReader, RefusesWhatCouldSmuggleARequest) {
    const std::string head = "POST / HTTP/1.1\r\nHost: h\r\n";
    EXPECT_EQ(fault_of(head + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
    EXPECT_EQ(fault_of(head + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"), 400);
    EXPECT_EQ(fault_of(head + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"), 400);
    EXPECT_NE(fault_of(head + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"), 0);
    EXPECT_EQ(fault_of(head + "Content-Length: -1\r\n\r\n"), 400);
    EXPECT_EQ(fault_of(head + "Content-Length: +3\r\n\r\nabc"), 400);
    EXPECT_EQ(fault_of(head + "Content-Length: 0x3\r\n\r\nabc"), 400);
    EXPECT_EQ(fault_of(head + "Content-Length: 3, 3\r\n\r\nabc"), 400);
    EXPECT_EQ(fault_of(head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501);
    EXPECT_EQ(fault_of(head + "Transfer-Encoding: identity\r\n\r\n"), 501);
    EXPECT_NE(fault_of(head +
                       "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
              0);
    EXPECT_NE(fault_of(head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 0);
    EXPECT_EQ(fault_of(head + "Host: other\r\n\r\n"), 400);
    EXPECT_EQ(fault_of(head + "X-A: b\r\n c\r\n\r\n"), 400);
    EXPECT_EQ(fault_of("POST / HTTP/1.1\nHost: h\n\n"), 400);
    EXPECT_EQ(fault_of("GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n"), 400);
    EXPECT_EQ(fault_of("GET / HTTP/1.1\r\n\r\n"), 400);
    EXPECT_EQ(fault_of(head + std::string("X: a\0b\r\n\r\n", 10)), 400);
    EXPECT_NE(fault_of(head + "Transfer-Encoding: chunked\r\n\r\n-1\r\n"), 0);
    EXPECT_NE(fault_of(head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"), 0);
    EXPECT_NE(fault_of(head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"), 0);
    EXPECT_EQ(fault_of("GET / HTTP/2.0\r\nHost: h\r\n\r\n"), 505);
    EXPECT_EQ(fault_of("GET nowhere HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    EXPECT_EQ(fault_of(head + "Expect: a-miracle\r\n\r\n"), 417);
    // The neighbours that are fine.
    EXPECT_EQ(fault_of(head + "Content-Length: 3\r\n\r\nabc"), 0);
    EXPECT_EQ(fault_of("GET / HTTP/1.0\r\n\r\n"), 0);
}

TEST(RequestReader, LimitsHoldExactly) {
    ServerLimits limits;
    limits.request_line_bytes = 100;
    limits.header_bytes = 400;
    limits.header_fields = 6;
    limits.body_bytes = 10;
    const auto line = [](size_t bytes) {  // a request line of this length
        const std::string frame = "GET / HTTP/1.1";
        return "GET /" + std::string(bytes - frame.size(), 'a') + " HTTP/1.1\r\nHost: h\r\n\r\n";
    };
    EXPECT_EQ(fault_of(line(100), limits), 0);
    EXPECT_EQ(fault_of(line(101), limits), 414);

    const auto fields = [](int n) {
        std::string out = "GET / HTTP/1.1\r\nHost: h\r\n";
        for (int i = 1; i < n; ++i) out += "X-" + std::to_string(i) + ": y\r\n";
        return out + "\r\n";
    };
    EXPECT_EQ(fault_of(fields(6), limits), 0);
    EXPECT_EQ(fault_of(fields(7), limits), 431);

    const auto head = [](size_t bytes) {  // a whole head of this length
        const std::string frame = "GET / HTTP/1.1\r\nHost: h\r\nX: \r\n\r\n";
        return "GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(bytes - frame.size(), 'a') +
               "\r\n\r\n";
    };
    EXPECT_EQ(fault_of(head(400), limits), 0);
    EXPECT_EQ(fault_of(head(401), limits), 431);
    // Without an end, too.
    EXPECT_EQ(fault_of("GET / HTTP/1.1\r\nX: " + std::string(500, 'a'), limits), 431);

    const auto body = [](size_t bytes) {
        return "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(bytes) +
               "\r\n\r\n" + std::string(bytes, 'b');
    };
    EXPECT_EQ(fault_of(body(10), limits), 0);
    EXPECT_EQ(fault_of(body(11), limits), 413);
    const auto chunks = [](int n) {
        std::string out = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (int i = 0; i < n; ++i) out += "1\r\nc\r\n";
        return out + "0\r\n\r\n";
    };
    EXPECT_EQ(fault_of(chunks(10), limits), 0);
    EXPECT_EQ(fault_of(chunks(11), limits), 413);
}

TEST(RequestReader, ARoutesOwnBodyLimitHolds) {
    for (const bool chunked : {false, true}) {
        for (const int64_t limit : {3, 2}) {
            RequestReader reader(ServerLimits{});
            reader.feed(chunked ? "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                                  "1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
                                : "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
            ASSERT_EQ(reader.state(), State::kBody);
            reader.limit_body(limit);
            reader.feed({});
            if (limit == 3) {
                EXPECT_EQ(reader.state(), State::kReady);
            } else {
                ASSERT_EQ(reader.state(), State::kFault);
                EXPECT_EQ(reader.fault().status, 413);
            }
        }
    }
}

/// Fed in pieces of `step` bytes.
std::unique_ptr<RequestReader> read_in_pieces(const std::string& text, size_t step) {
    auto reader = std::make_unique<RequestReader>(ServerLimits{});
    for (size_t at = 0; at < text.size() && reader->state() != State::kFault; at += step)
        reader->feed(std::string_view(text).substr(at, step));
    if (reader->state() == State::kBody) reader->feed({});
    return reader;
}

TEST(RequestReader, LastChunksAreReadOneWayHoweverTheyAreCut) {
    // The library asserts on a last chunk of an empty body that comes in pieces; that would have
    // ended the program.
    const std::string head = "POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    struct Row {
        std::string rest;
        State state;
        std::string body;
    };
    for (const Row& row : {Row{"0\r\n\r\n", State::kReady, ""},
                           {"0\r\nx-a: b\r\n\r\n", State::kReady, ""},
                           {"2\r\nhi\r\n0\r\n\r\n", State::kReady, "hi"},
                           {"0\r\n", State::kBody, ""},
                           {"0\r\nabc\r\n0\r\n\x9d\r\n", State::kBody, ""},
                           {"0\r\nabc\r\n\r\n", State::kFault, ""},
                           {"0\r\nabc\r\n4\r\nTG\r\n / E\rHTTP/1.0\r\n\r\n", State::kFault, ""}}) {
        const std::string text = head + row.rest;
        for (size_t step = 1; step <= text.size(); ++step) {
            const auto reader = read_in_pieces(text, step);
            ASSERT_EQ(reader->state(), row.state) << row.rest << " in pieces of " << step;
            if (row.state == State::kFault) {
                EXPECT_EQ(reader->fault().status, 400);
            }
            if (row.state == State::kReady) {
                EXPECT_EQ(reader->take().body, row.body);
            }
        }
    }
}

TEST(RequestReader, AbsoluteTargetsAndQueries) {
    const auto reader = read("GET http://h:1/v1/models?x#y HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_EQ(reader->state(), State::kReady);
    EXPECT_EQ(reader->take().path, "/v1/models");
}

TEST(HttpMessage, HeadsSayHowTheBodyEnds) {
    HttpReply reply;
    EXPECT_NE(format_head(reply, 11, true, 5).find("content-length: 5\r\n"), std::string::npos);
    EXPECT_NE(format_head(reply, 11, true, -1).find("transfer-encoding: chunked"),
              std::string::npos);
    const std::string old = format_head(reply, 10, true, -1);
    EXPECT_EQ(old.find("chunked"), std::string::npos);
    EXPECT_NE(old.find("connection: close"), std::string::npos);
    std::string out;
    append_chunk("", &out);
    EXPECT_EQ(out, "");
    append_chunk("hello world, hello", &out);
    EXPECT_EQ(out, "12\r\nhello world, hello\r\n");
}

}  // namespace
}  // namespace deepinfer::server
