#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment in build-python/ and tests what is installed.
#
#   tests/python/run.sh [PROGRAM]      PROGRAM: a built deepinfer to compare with (default build/deepinfer; absent = those tests are skipped)
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/deepinfer}
mkdir -p build-python
env=build-python/env

# Build tools by hash; the module's objects are kept between runs in build-python/<tag>.
python3 -m venv --clear build-python/build-env
build-python/build-env/bin/python -m pip -q --disable-pip-version-check install --require-hashes --only-binary :all: -r deps/build-requirements.txt
rm -rf build-python/wheel
build-python/build-env/bin/python -m pip -q --disable-pip-version-check wheel . --no-deps --no-build-isolation -w build-python/wheel

python3 -m venv --clear "$env"
"$env/bin/python" -m pip -q --disable-pip-version-check install --no-index --no-deps build-python/wheel/deepinfer-*.whl

# Away from the source tree, so that nothing but the installed package can be imported.
here=$PWD
case "$program" in /*) ;; *) program=$here/$program ;; esac
cd build-python
TEST_PROGRAM=$program TEST_EXAMPLES=$here/examples exec env -u DEEPINFER_HF_MODEL_DIR \
    "$here/$env/bin/python" -m unittest discover -s "$here/tests/python" -p '*_test.py' -v
