#!/usr/bin/env bash
# Builds and runs fuzz targets (default: all) for a number of seconds each.   usage: tests/fuzz/run.sh [SECONDS [TARGET…]]
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-20}
if ! command -v clang++-14 > /dev/null; then
    echo "fuzz: SKIP, clang++-14 is missing (apt-get install clang-14 libclang-rt-14-dev)"
    exit 1
fi
deps/fetch.sh
cmake --preset fuzz -DDEEPINFER_FUZZ_SECONDS="$seconds" > /dev/null
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] ||
    targets=(fuzz_safetensors fuzz_config fuzz_tokenizer_json fuzz_recipe_line fuzz_http fuzz_constraint fuzz_image)
cmake --build --preset fuzz $(printf -- '--target %s ' "${targets[@]}")
ctest --test-dir build-fuzz -L fuzz -R "^($(IFS='|'; echo "${targets[*]}"))\$" --output-on-failure --no-tests=error
