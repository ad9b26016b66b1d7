#include "server/assets.h"

#include <openssl/sha.h>

#include <map>

namespace deepinfer::server {
namespace {

std::string_view content_type_of(std::string_view name) {
    static constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
        {".html", "text/html; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".mjs", "text/javascript; charset=utf-8"},
        {".json", "application/json"},
        {".webmanifest", "application/manifest+json"},
        {".svg", "image/svg+xml"},
        {".png", "image/png"},
        {".ico", "image/x-icon"},
        {".woff2", "font/woff2"},
        {".txt", "text/plain; charset=utf-8"},
    };
    for (const auto& [suffix, type] : kTypes) {
        if (name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix)
            return type;
    }
    return "application/octet-stream";
}

std::string etag_of(std::string_view bytes) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out = "\"";
    for (int i = 0; i < 12; ++i) {
        out.push_back(kHex[digest[i] >> 4]);
        out.push_back(kHex[digest[i] & 15]);
    }
    return out + "\"";
}

const std::map<std::string_view, Asset>& table() {
    static const std::map<std::string_view, Asset> kTable = [] {
        std::map<std::string_view, Asset> out;
        for (const EmbeddedFile& file : web_files())
            out[file.name] = {file.bytes, content_type_of(file.name), etag_of(file.bytes)};
        return out;
    }();
    return kTable;
}

}  // namespace

std::optional<Asset> find_asset(std::string_view path) {
    constexpr std::string_view kFolder = "/web/";
    std::string_view name;
    if (path == "/") {
        name = "index.html";
    } else if (path == "/admin" || path == "/admin/") {
        name = "admin.html";
    } else if (path.substr(0, kFolder.size()) == kFolder) {
        name = path.substr(kFolder.size());
    } else {
        return std::nullopt;
    }
    const auto found = table().find(name);
    if (found == table().end()) return std::nullopt;
    return found->second;
}

}  // namespace deepinfer::server
