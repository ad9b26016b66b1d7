#!/usr/bin/env bash
# The official openai and anthropic packages, pinned by version and hash in a virtual environment of their own
# (build-clients/), drive a server with the demonstration checkpoint.
#
#   tests/clients/run.sh [PROGRAM]      PROGRAM: a built deepinfer (default build/deepinfer)
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/deepinfer}
env=build-clients/env
want=$(sha256sum < tests/clients/requirements.txt)
if [ "$(cat build-clients/stamp 2> /dev/null)" != "$want" ]; then
    rm -rf build-clients
    python3 -m venv "$env"
    "$env/bin/python" -m pip -q --disable-pip-version-check install --require-hashes --no-deps --only-binary :all: \
        -r tests/clients/requirements.txt
    echo "$want" > build-clients/stamp
fi
exec env -u DEEPINFER_HF_MODEL_DIR "$env/bin/python" tests/clients/clients_test.py "$program" -v
