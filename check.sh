#!/usr/bin/env bash
# One command checks it.
#
#   ./check.sh fast     format, layering, unit and twin tests                 (minutes)
#   ./check.sh full     fast + golden vectors, laws, command line, the CUDA compile, ASan+UBSan, short fuzz (no argument: this)
#   ./check.sh long     what takes its time: wide matrices, random outputs, browser, client packages, Python wheel,
#                       the sanitizers over the server and the parts with libraries, their fuzzing
#   ./check.sh tsan     engine, cache, server and thread pool under ThreadSanitizer
#   ./check.sh clients  the official client packages against a server           (folded into long)
#   ./check.sh python   the wheel in a fresh virtual environment, and its tests
#   ./check.sh cuda     compiles the CUDA backend and its tests, runs what needs no device   (folded into full)
#   ./check.sh gpu      tests labelled gpu, on a machine with a device
#   ./check.sh format   rewrites the sources with clang-format
set -euo pipefail
cd "$(dirname "$0")"
mode=${1:-full}
jobs=$(nproc)
skips=build/skipped_tests.txt

sources() { git ls-files -co --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' | grep -v 'unicode_tables.cpp'; }
step() { printf '\n== %s (%s)\n' "$1" "$(date +%H:%M:%S)"; }

format_check() {
    step "format"
    sources | xargs -d '\n' clang-format --dry-run -Werror
}

# ctest in one build folder; skipped tests are listed with their reason.
run_tests() {  # folder, ctest arguments…
    local folder=$1; shift
    ctest --test-dir "$folder" --output-on-failure -j "$jobs" --no-tests=error --output-log "$folder/ctest.log" "$@"
    grep -hE '\*\*\*Skipped|SKIP' "$folder/ctest.log" >> "$skips" || :
}

# The program with the CUDA backend on a machine without a device: it compiles, says what is missing, still runs on the CPU.
cuda_check() {
    step "CUDA backend: compile, and what needs no device"
    ./build.sh --preset cuda --target gpu_test --target step_bench --target op_bench --target gpu_forward --target deepinfer_cli
    if build-cuda/tests/gpu/gpu_test --gtest_list_tests > /dev/null && nvidia-smi > /dev/null 2>&1; then
        echo "a device is here: ./check.sh gpu runs its tests"
        return
    fi
    local said
    said=$(build-cuda/deepinfer generate --backend cuda "Hello" 2>&1) && { echo "check.sh: --backend cuda ran without a device: $said" >&2; exit 1; }
    case $said in *cuda*) echo "refused as it should be: $said" ;; *) echo "check.sh: --backend cuda failed without saying why: $said" >&2; exit 1 ;; esac
    [ "$(build-cuda/deepinfer generate --thinking 0 --temperature 0 "12 + 30")" = "$(build/deepinfer generate --thinking 0 --temperature 0 "12 + 30")" ] ||
        { echo "check.sh: the CUDA build answers differently on the CPU" >&2; exit 1; }
    build-cuda/tests/gpu/gpu_test --gtest_brief=1 | tail -2
    echo "NOT RUN here: the tests labelled gpu (no device)" | tee -a "$skips"
}

case "$mode" in
    format)
        sources | xargs -d '\n' clang-format -i
        ;;
    fast)
        ./build.sh
        : > "$skips"
        format_check
        step "unit and twin tests"
        run_tests build -LE 'full|long|gpu'
        ;;
    full)
        "$0" fast
        step "golden vectors, laws, command line"
        run_tests build -L full
        cuda_check
        step "AddressSanitizer and UndefinedBehaviorSanitizer"
        ./build.sh --preset asan --target test_checkpoints $(printf -- '--target %s_test ' base tensor device checkpoint tokenizer recipe sampler kvcache ops engine)
        for program in base/base tensor/tensor device/device checkpoint/checkpoint tokenizer/tokenizer recipe/recipe \
            sampler/sampler kvcache/kvcache backends/ref/ops engine/engine; do
            # Tests of refused allocations ask for more than there is: null, not an abort.
            ASAN_OPTIONS=allocator_may_return_null=1 "build-asan/src/${program}_test" --gtest_brief=1
        done
        step "fuzz (20 s a target)"
        tests/fuzz/run.sh 20 fuzz_safetensors fuzz_config fuzz_tokenizer_json fuzz_recipe_line
        step "skipped tests, by reason"
        sort "$skips" | uniq -c | sort -rn
        [ -s "$skips" ] || echo "none"
        ;;
    long)
        ./build.sh
        : > "$skips"
        step "wide matrices, random outputs, pages in a browser"
        run_tests build -L long
        "$0" clients
        "$0" python
        step "sanitizers: server, grammar, vision"
        ./build.sh --preset asan --target test_checkpoints --target server_test --target grammar_test --target vision_test
        for program in server/server grammar/grammar vision/vision; do
            ASAN_OPTIONS=allocator_may_return_null=1 "build-asan/src/${program}_test" --gtest_brief=1
        done
        step "fuzz (20 s a target)"
        tests/fuzz/run.sh 20
        ;;
    tsan)
        ./build.sh --preset tsan --target base_test --target kvcache_test --target engine_test --target server_test
        step "ThreadSanitizer"
        for program in base/base_test kvcache/kvcache_test engine/engine_test server/server_test; do
            TSAN_OPTIONS=halt_on_error=1 "build-tsan/src/$program"
        done
        ;;
    clients)
        ./build.sh --target deepinfer_cli
        step "client packages"
        tests/clients/run.sh build/deepinfer
        ;;
    python)
        ./build.sh --target deepinfer_cli
        step "Python package: wheel, fresh environment, tests"
        tests/python/run.sh "$PWD/build/deepinfer"
        ;;
    cuda)
        ./build.sh --target deepinfer_cli
        : > "$skips"
        cuda_check
        ;;
    gpu)
        ./build.sh --preset cuda --target gpu_test
        step "gpu tests"
        run_tests build-cuda -L gpu
        ;;
    *)
        sed -n '2,14s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac
