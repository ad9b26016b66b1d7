#!/bin/bash
# Packs what a bare GPU host lacks to build the GPU programs: GoogleTest, nlohmann/json and utf8proc, headers and
# static libraries (about 0.4 MB). Run it where the Debian packages are; carry the archive with the tree.
#
#   tools/gpu_deps.sh ARCHIVE.tar.xz
set -euo pipefail
out=${1:?usage: tools/gpu_deps.sh ARCHIVE.tar.xz}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/deps/include" "$dir/deps/lib"
cp -r /usr/include/gtest /usr/include/nlohmann /usr/include/utf8proc.h "$dir/deps/include/"
lib=$(dirname "$(find /usr/lib -name libgtest.a | head -1)")
cp "$lib/libgtest.a" "$lib/libgtest_main.a" "$lib/libutf8proc.a" "$dir/deps/lib/"
tar -C "$dir" -cJf "$out" deps
