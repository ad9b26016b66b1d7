#!/usr/bin/env bash
# Builds ggml and matrix_rivals outside the tree and races our linear against them; JSON lines on stdout.
#
#   bench/rivals/run.sh [--build DIR] [--work DIR] [threads [windows [window_ms [rows...]]]]
#
# --build  a build of this tree (default: build)      --work  where everything else goes
# Needs libdnnl-dev, libopenblas-dev, cmake, ninja and pip; nothing of it is linked into the product.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build
work=${TMPDIR:-/tmp}/deepinfer-rivals
while [[ ${1:-} == --* ]]; do
    case $1 in
        --build) build=$(cd "$2" && pwd) ;;
        --work) work=$2 ;;
        *) echo "run.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done
version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
mkdir -p "$work"
cd "$work"
archive=llama_cpp_python-$version.tar.gz
if [[ ! -f $archive ]]; then
    pip download --quiet --no-deps --no-build-isolation --no-binary :all: --dest . "llama-cpp-python==$version" >&2
fi
echo "$sha256  $archive" | sha256sum --check --quiet >&2
ggml=$work/llama_cpp_python-$version/vendor/llama.cpp/ggml
[[ -d $ggml ]] || tar xzf "$archive"
touch "$ggml/ggml.pc.in"  # the archive lacks it, the build file asks for it
if [[ ! -f $work/ggml/src/libggml-cpu.a ]]; then
    cmake -S "$ggml" -B "$work/ggml" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
        -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF >&2
    ninja -C "$work/ggml" >&2
fi
lib() { echo "$build/src/$1/libdeepinfer_$2.a"; }
g++ -std=c++20 -O2 -I"$root/src" -I"$root/include" -I"$ggml/include" "$root/bench/rivals/matrix_rivals.cpp" -o matrix_rivals \
    -Wl,--start-group "$(lib backends/cpu backend_cpu)" "$(lib ops ops)" "$(lib device device)" "$(lib tensor tensor)" \
    "$(lib base base)" "$work"/ggml/src/libggml*.a -Wl,--end-group -ldnnl -lopenblas -fopenmp -lpthread -ldl
./matrix_rivals "$@"
