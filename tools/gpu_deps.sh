#!/bin/bash
# Packs what a bare GPU host lacks, from where the Debian packages are; carry the archive with the tree (about 4 MB).
#
#   tools/gpu_deps.sh ARCHIVE.tar.xz
#
#   deps/include, deps/lib   GoogleTest, nlohmann/json, utf8proc: enough for tools/gpu_build.sh
#   deps/usr                 the packages that the whole program needs, for CMake (tools/gpu_cli.sh)
set -euo pipefail
out=${1:?usage: tools/gpu_deps.sh ARCHIVE.tar.xz}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/deps/include" "$dir/deps/lib"
cp -r /usr/include/gtest /usr/include/nlohmann /usr/include/utf8proc.h "$dir/deps/include/"
lib=$(dirname "$(find /usr/lib -name libgtest.a | head -1)")
cp "$lib/libgtest.a" "$lib/libgtest_main.a" "$lib/libutf8proc.a" "$dir/deps/lib/"
packages=(libcli11-dev nlohmann-json3-dev libutf8proc-dev libedit-dev libedit2 libbsd-dev libbsd0 libmd0 libmd-dev
    libncurses-dev libtinfo6 libssl-dev libssl3 zlib1g-dev zlib1g libpcre2-dev libpcre2-8-0
    libjpeg62-turbo-dev libjpeg62-turbo libgif-dev libgif7 libspng-dev libspng0 libwebp-dev libwebp7 libwebpdemux2 libseccomp-dev libseccomp2)
for p in "${packages[@]}"; do dpkg-query -L "$p" 2> /dev/null || echo "gpu_deps: $p is not installed" >&2; done |
    grep -E '^/(usr/(include|lib|share/(cmake|pkgconfig|nlohmann))|lib)' | grep -v -E '/doc/|/engines-3/|libssl\.|libcrypto\.a|libncurses|libform|libmenu|libpanel|libtic|libcurses|pcre2-(16|32)' |
    sort -u | while read -r f; do
        [ -d "$f" ] && continue
        to=$dir/deps/usr/${f#/}
        to=${to/deps\/usr\/usr/deps\/usr}
        mkdir -p "$(dirname "$to")"
        cp -a "$f" "$to"
    done
tar -C "$dir" -cJf "$out" deps
