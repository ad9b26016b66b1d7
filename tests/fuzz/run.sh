#!/usr/bin/env bash
# Builds and runs every fuzz target for a number of seconds.   usage: tests/fuzz/run.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-20}
if ! command -v clang++-14 > /dev/null; then
    echo "fuzz: SKIP, clang++-14 is missing (apt-get install clang-14 libclang-rt-14-dev)"
    exit 1
fi
deps/fetch.sh
cmake --preset fuzz -DDEEPINFER_FUZZ_SECONDS="$seconds" > /dev/null
cmake --build --preset fuzz --target fuzz_safetensors --target fuzz_config --target fuzz_tokenizer_json --target fuzz_recipe_line --target fuzz_http --target fuzz_constraint --target fuzz_image
ctest --test-dir build-fuzz -L fuzz --output-on-failure --no-tests=error
