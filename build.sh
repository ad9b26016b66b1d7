#!/usr/bin/env bash
# Builds build/deepinfer, the library and the tests. Installs missing Debian packages first (as root or through sudo).
#
#   ./build.sh                      CPU build into build/
#   DEEPINFER_ACCELERATOR=nvidia ./build.sh    with the CUDA backend (without nvcc: fetches it, deps/cuda.sh)
#   ./build.sh --run                builds, then answers a question with the demonstration checkpoint
#   ./build.sh --no-install         never installs packages
#   ./build.sh --preset asan        another preset of CMakePresets.json (into build-asan/)
#   ./build.sh --target NAME        only this target (repeatable)
set -euo pipefail
cd "$(dirname "$0")"

preset=dev install=1 run=0 targets=()
while [ $# -gt 0 ]; do
    case "$1" in
        --run) run=1 ;;
        --no-install) install=0 ;;
        --preset) preset=$2; shift ;;
        --target) targets+=(--target "$2"); shift ;;
        -h|--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "build.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
done

default=cpu
[ "$preset" = cuda ] && default=nvidia
accelerator=${DEEPINFER_ACCELERATOR:-$default}
case "$accelerator" in
    cpu|nvidia) ;;
    ascend) echo "build.sh: DEEPINFER_ACCELERATOR=ascend is not in this version; compiled backends: cpu, nvidia" >&2; exit 2 ;;
    *) echo "build.sh: DEEPINFER_ACCELERATOR is '$accelerator', expected cpu or nvidia" >&2; exit 2 ;;
esac

# Missing packages, by dpkg's own list.
mapfile -t wanted < <(sed 's/#.*//' deps/apt.txt | tr -s ' \n' '\n' | sed '/^$/d')
missing=()
for package in "${wanted[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    command=(apt-get install -y -qq --no-install-recommends "${missing[@]}")
    [ "$(id -u)" = 0 ] || command=(sudo "${command[@]}")
    if [ $install = 0 ]; then
        echo "build.sh: missing packages; run: ${command[*]}" >&2
        exit 2
    fi
    echo "build.sh: installing ${missing[*]}"
    if [ "$(id -u)" = 0 ]; then apt-get update -qq; else sudo apt-get update -qq; fi
    DEBIAN_FRONTEND=noninteractive "${command[@]}" > /dev/null
fi

deps/fetch.sh
[ "$accelerator" = nvidia ] && deps/cuda.sh
args=(--preset "$preset" -DDEEPINFER_ACCELERATOR="$accelerator")
cmake "${args[@]}" > /tmp/deepinfer-configure.$$ || { cat /tmp/deepinfer-configure.$$; rm -f /tmp/deepinfer-configure.$$; exit 1; }
rm -f /tmp/deepinfer-configure.$$
cmake --build --preset "$preset" "${targets[@]}"

if [ $run = 1 ]; then
    echo
    echo '$ build/deepinfer generate "What is the capital of France?"'
    build/deepinfer generate --progress "What is the capital of France?"
fi
