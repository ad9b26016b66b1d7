// Bytes around a chunked body are bounded like the head: they are no body, so its limit does not
// hold them.
#include <gtest/gtest.h>

#include <algorithm>

#include "server/http_parser.h"

namespace deepinfer::server {
namespace {

using State = RequestReader::State;

/// Feeds `text` in pieces as a socket gives them; the number of bytes kept at most.
size_t feed_all(RequestReader* reader, const std::string& text) {
    constexpr size_t kPiece = 4096;
    size_t most = 0;
    for (size_t at = 0; at < text.size(); at += kPiece) {
        reader->feed(std::string_view(text).substr(at, kPiece));
        if (reader->state() == State::kBody) reader->feed({});
        most = std::max(most, reader->buffered());
    }
    return most;
}

const std::string kChunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string many_trailers() {
    std::string out = "0\r\n";
    for (int i = 0; i < 100'000; ++i) out += "x: y\r\n";
    return out;
}

TEST(RequestReader, BytesAroundChunksAreRefusedBeforeManyAreKept) {
    const std::string megabyte(1 << 20, 'a');
    for (const std::string& text : {"2;" + megabyte, "0\r\nx: " + megabyte, many_trailers()}) {
        const ServerLimits limits;
        RequestReader reader(limits);
        const size_t most = feed_all(&reader, kChunked + text);
        SCOPED_TRACE(text.substr(0, 8));
        ASSERT_EQ(reader.state(), State::kFault);
        EXPECT_EQ(reader.fault().status, 431);
        EXPECT_NE(reader.fault().message.find("chunk"), std::string::npos)
            << reader.fault().message;
        EXPECT_LE(most, static_cast<size_t>(limits.header_bytes) + 8192);
    }
}

TEST(RequestReader, ShortExtensionsTrailersAndManySmallChunksAreRead) {
    std::string text = kChunked + "2;name=value\r\nab\r\n";
    for (int i = 0; i < 50'000; ++i) text += "1\r\nc\r\n";
    text += "0\r\nx-sum: 1\r\n\r\n";
    RequestReader reader(ServerLimits{});
    feed_all(&reader, text);
    ASSERT_EQ(reader.state(), State::kReady) << reader.fault().message;
    EXPECT_EQ(reader.take().body, "ab" + std::string(50'000, 'c'));
}

TEST(RequestReader, ALargeBodyInOnePieceIsNoFlood) {
    const std::string body(1 << 20, 'x');
    RequestReader reader(ServerLimits{});
    reader.feed("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1048576\r\n\r\n" + body);
    reader.feed({});
    ASSERT_EQ(reader.state(), State::kReady) << reader.fault().message;
    EXPECT_EQ(reader.take().body, body);
}

}  // namespace
}  // namespace deepinfer::server
