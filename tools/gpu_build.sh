#!/bin/bash
# Builds the GPU programs (gpu_test, op_bench, step_bench, gpu_forward) without CMake, on a bare GPU host with nvcc and g++:
# about 20 seconds on 16 cores.
#
#   tools/gpu_build.sh DEPS.tar.xz BUILD_DIR        DEPS.tar.xz: tools/gpu_deps.sh
set -uo pipefail
deps=$(readlink -f "${1:?usage: tools/gpu_build.sh DEPS.tar.xz BUILD_DIR}")
mkdir -p "${2:?BUILD_DIR}/o"
build=$(readlink -f "$2")
cd "$(dirname "$0")/.."
tar -C "$build" -xJf "$deps"
cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
echo "#define DEEPINFER_DEMO_SOURCE_DIR \"$PWD/models/demo\"" > "$build/defs.h"
rm -f "$build"/commands "$build"/failed "$build"/o/*.log
cxx="g++ -std=c++20 -O2 -ffp-contract=off -include $build/defs.h -Isrc -Iinclude -Itests -isystem $build/deps/include -isystem $build/deps/usr/include -isystem $build/deps/usr/include/x86_64-linux-gnu -isystem $cuda/include -c"
nv="nvcc -std=c++20 -O3 -lineinfo --split-compile=4 -Isrc -Iinclude -gencode=arch=compute_90a,code=sm_90a -Xptxas=-v -c"
object() { echo "$build/o/$(echo "$1" | tr / _).o"; }
# The largest files first, so that none of them is left for last.
for f in $(ls -S src/backends/cuda/*.cu src/ops/*/*_cuda.cu src/ops/*/*_sm90.cu); do
    case $f in *sample_rows*) extra=-fmad=false ;; *) extra= ;; esac  # as src/backends/cuda/CMakeLists.txt
    echo "$nv $extra $f -o $(object "$f")"
done >> "$build/commands"
for f in $(ls src/{base,tensor,device,checkpoint,model,tokenizer,judge,ops}/*.cpp src/ops/*/*_ref.cpp src/backends/{ref,cuda}/*.cpp tests/gpu/*.cpp |
    grep -v -e '_test\.cpp$' -e '_bench\.cpp$') src/kvcache/cache_memory.cpp src/vision/image_{plan,preprocess,resize,resample,resample_avx2,decode,input}.cpp src/vision/decode_*.cpp tests/gpu/op_bench.cpp tests/gpu/step_bench.cpp tests/gpu/*_gpu_test.cpp; do
    echo "$cxx $f -o $(object "$f")"
done | sort -u >> "$build/commands"
nl=$(wc -l < "$build/commands")
xargs -P "$(nproc)" -d '\n' -I{} sh -c 'log=$(echo "$1" | sed "s/.*-o //").log; $1 > "$log" 2>&1 || echo "$1" >> "$2/failed"' _ {} "$build" < "$build/commands"
if [ -f "$build/failed" ]; then
    grep -h -E "error" "$build"/o/*.log | head -20
    exit 1
fi
# One line a spilling kernel; the full resource report stays in $build/o/*.cu.o.log.
echo "compiled $nl files; kernels with spills: $(grep -h -E ' [1-9][0-9]* bytes spill stores' "$build"/o/*.cu.o.log | wc -l)"
lib="-L$cuda/lib64 -L$cuda/targets/x86_64-linux/lib -lcudart_static -ldl -lrt -lpthread $build/deps/lib/libutf8proc.a"
images="-L$build/deps/usr/lib/x86_64-linux-gnu -Wl,-rpath,$build/deps/usr/lib/x86_64-linux-gnu -ljpeg -lgif -lspng -lwebp -lwebpdemux -lcrypto"
set -e
ar rcs "$build/libsrc.a" "$build"/o/src_*.o
g++ -o "$build/gpu_test" "$build"/o/tests_gpu_*_gpu_test.cpp.o "$build"/o/tests_gpu_gpu_support.cpp.o "$build/libsrc.a" \
    "$build/deps/lib/libgtest_main.a" "$build/deps/lib/libgtest.a" $lib
g++ -o "$build/op_bench" "$build"/o/tests_gpu_op_bench.cpp.o "$build/libsrc.a" $lib
g++ -o "$build/step_bench" "$build"/o/tests_gpu_step_bench.cpp.o "$build/libsrc.a" $lib
g++ -o "$build/gpu_forward" "$build"/o/tests_gpu_gpu_forward.cpp.o "$build/libsrc.a" $lib $images
