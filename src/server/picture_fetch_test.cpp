// What may be fetched: public addresses, and URLs that are read one way.
#include "server/picture_fetch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/un.h>

#include <chrono>
#include <string>

namespace deepinfer::server {
namespace {

TEST(PictureFetch, AddressesThatAreNotPublic) {
    const auto is_public = [](const char* text) {
        sockaddr_in v4{};
        v4.sin_family = AF_INET;
        sockaddr_in6 v6{};
        v6.sin6_family = AF_INET6;
        if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
            return is_public_address(reinterpret_cast<const sockaddr*>(&v4));
        EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1) << text;
        return is_public_address(reinterpret_cast<const sockaddr*>(&v6));
    };
    for (const char* text : {"0.0.0.0",
                             "0.1.2.3",
                             "10.0.0.1",
                             "10.255.255.255",
                             "100.64.0.1",
                             "100.127.255.255",
                             "100.100.100.200",
                             "127.0.0.1",
                             "127.255.255.254",
                             "169.254.169.254",
                             "169.254.0.1",
                             "172.16.0.1",
                             "172.31.255.255",
                             "192.0.0.192",
                             "192.0.2.1",
                             "192.88.99.1",
                             "192.168.0.1",
                             "198.18.0.1",
                             "198.19.255.255",
                             "198.51.100.7",
                             "203.0.113.9",
                             "168.63.129.16",
                             "224.0.0.1",
                             "239.255.255.255",
                             "240.0.0.1",
                             "255.255.255.255",
                             "::",
                             "::1",
                             "::ffff:127.0.0.1",
                             "::ffff:10.0.0.1",
                             "::ffff:169.254.169.254",
                             "::127.0.0.1",
                             "64:ff9b::7f00:1",
                             "64:ff9b:1::1",
                             "fc00::1",
                             "fd00:ec2::254",
                             "fe80::1",
                             "fec0::1",
                             "ff02::1",
                             "2001::1",
                             "2001:db8::1",
                             "2002:7f00:1::",
                             "2002:a00:1::",
                             "3fff::1",
                             "5f00::1",
                             "100::1",
                             "4000::1"})
        EXPECT_FALSE(is_public(text)) << text;
    for (const char* text : {"1.1.1.1",         "8.8.8.8",        "9.255.255.255",
                             "11.0.0.0",        "100.63.255.255", "100.128.0.0",
                             "126.255.255.255", "128.0.0.1",      "169.253.255.255",
                             "172.15.255.255",  "172.32.0.0",     "192.0.1.1",
                             "192.167.255.255", "198.17.255.255", "198.20.0.0",
                             "223.255.255.255", "168.63.129.15",  "::ffff:8.8.8.8",
                             "2606:4700::1111", "2a00:1450::1",   "2001:4860:4860::8888"})
        EXPECT_TRUE(is_public(text)) << text;
    const sockaddr local{AF_UNIX, {}};
    EXPECT_FALSE(is_public_address(&local));
}

TEST(PictureFetch, UrlsAreReadOneWay) {
    const auto shown = [](const char* text) -> std::string {
        const Result<FetchUrl> url = parse_fetch_url(text);
        if (!url.ok()) return "refused";
        return (url->tls ? "s " : "- ") + url->host + " " + std::to_string(url->port) + " " +
               url->target;
    };
    EXPECT_EQ(shown("http://Example.ORG"), "- example.org 80 /");
    EXPECT_EQ(shown("https://example.org/a/b/?q=1#f"), "s example.org 443 /a/b/?q=1");
    EXPECT_EQ(shown("http://example.org?q"), "- example.org 80 /?q");
    EXPECT_EQ(shown("http://example.org:8080/x//y"), "- example.org 8080 /x//y");
    EXPECT_EQ(shown("https://[2606:4700::1111]:444/"), "s 2606:4700::1111 444 /");
    EXPECT_EQ(shown("http://a/"), "- a 80 /");
    EXPECT_EQ(shown("http://a:/x"), "refused");
    EXPECT_EQ(shown("http://a b/"), "refused");
    EXPECT_EQ(shown("http://[::1]x/"), "refused");
}

}  // namespace
}  // namespace deepinfer::server
