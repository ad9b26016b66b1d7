#!/usr/bin/env bash
# Fetches the CUDA compiler and static runtime (deps/cuda-requirements.txt) from PyPI into build/_cuda, for machines
# without a CUDA toolkit: enough to compile the backend, no driver. Does nothing where nvcc is installed or the stamp
# matches; a failure leaves the old tree.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v nvcc > /dev/null && exit 0
[ -x /usr/local/cuda/bin/nvcc ] && exit 0
tree=build/_cuda new=build/_cuda.new.$$
want=$(cat deps/cuda-requirements.txt deps/cuda.sh | sha256sum)
[ "$(cat $tree/stamp 2>/dev/null)" = "$want" ] && exit 0
echo "deps/cuda.sh: no nvcc found; fetching $(sed -n 's/ .*//;/^[a-z]/p' deps/cuda-requirements.txt | tr '\n' ' ')from PyPI (105 MB)"
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/files"
python3 -m venv "$new/venv"
"$new/venv/bin/python" -m pip --quiet --disable-pip-version-check download --require-hashes --no-deps --only-binary :all: \
    -r deps/cuda-requirements.txt -d "$new/files"
for wheel in "$new"/files/*.whl; do python3 -m zipfile -e "$wheel" "$new/wheels"; done
mv "$new/wheels/nvidia/cu13" "$new/toolkit"
chmod +x "$new"/toolkit/bin/* "$new"/toolkit/nvvm/bin/*
ln -s lib "$new/toolkit/lib64"
rm -rf "$new/venv" "$new/files" "$new/wheels"
echo "$want" > "$new/stamp"
rm -rf "$tree"
mv "$new" "$tree"
