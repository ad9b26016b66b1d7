#!/bin/bash
# Builds the whole program with the CUDA backend through CMake on a bare GPU host: under a minute on 16 cores.
#
#   tools/gpu_cli.sh DEPS.tar.xz BUILD_DIR        DEPS.tar.xz: tools/gpu_deps.sh; leaves BUILD_DIR/cli/deepinfer
set -euo pipefail
deps=$(readlink -f "${1:?usage: tools/gpu_cli.sh DEPS.tar.xz BUILD_DIR}")
mkdir -p "${2:?BUILD_DIR}"
build=$(readlink -f "$2")
cd "$(dirname "$0")/.."
tar -C "$build" -xJf "$deps"
usr=$build/deps/usr arch=x86_64-linux-gnu
cmake -S . -B "$build/cli" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DDEEPINFER_ACCELERATOR=nvidia -DDEEPINFER_BUILD_TESTS=OFF \
    -DCMAKE_PREFIX_PATH="$usr" -DOPENSSL_ROOT_DIR="$usr" -DCMAKE_LIBRARY_PATH="$usr/lib/$arch" \
    -DCMAKE_CXX_FLAGS="-isystem $usr/include -isystem $usr/include/$arch" \
    -DCMAKE_EXE_LINKER_FLAGS="-L$usr/lib/$arch -Wl,-rpath-link,$usr/lib/$arch -Wl,-rpath,$usr/lib/$arch" > "$build/configure.log" 2>&1 ||
    { tail -20 "$build/configure.log"; exit 1; }
ninja -C "$build/cli" deepinfer_cli > "$build/cli.log" 2>&1 || { grep -E "error|FAILED|undefined" "$build/cli.log" | head -20; exit 1; }
"$build/cli/deepinfer" --version
