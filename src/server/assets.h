// Files that the build put into the program: the pages that the server shows.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace deepinfer::server {

struct EmbeddedFile {
    std::string_view name;  ///< path below web/, "index.html"
    std::string_view bytes;
};

/// Every file of web/, sorted by name (cmake/deepinfer_embed.cmake writes this function).
std::span<const EmbeddedFile> web_files();

/// A file as a page asks for it.
struct Asset {
    std::string_view bytes;
    std::string_view content_type;
    std::string etag;  ///< quoted; changes with the bytes
};

/// The asset behind a path: "/" is index.html, "/admin" is admin.html, "/web/NAME" any file of
/// web/. Nothing for another path; names are looked up, never joined to a folder.
std::optional<Asset> find_asset(std::string_view path);

/// What a page may do: nothing but what this server itself serves, and strings become markup or
/// scripts only through the two named policies (docs/web.md). Sent with every asset.
inline constexpr std::string_view kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action "
    "'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types deepinfer dompurify";

}  // namespace deepinfer::server
