#!/bin/bash
# One command for a bare GPU host (nvcc, g++, PyTorch; no network), under nine minutes: ceilings, twin tests,
# compute-sanitizer, goldens, op benchmarks. Prints a summary and leaves JSON lines and logs in OUT.
#
#   tools/gpu_check.sh --deps DEPS.tar.xz [--out DIR] [--build DIR] [--skip step,step]
#
# steps: ceilings tests sanitizer golden bench. A step that cannot run is a loud SKIP; the exit status is 1 if one failed.
set -uo pipefail
deps= out=gpu_check_out build=/tmp/deepinfer_gpu skip=
while [ $# -gt 1 ]; do
    case $1 in
        --deps) deps=$2 ;;
        --out) out=$2 ;;
        --build) build=$2 ;;
        --skip) skip=$2 ;;
        *) echo "gpu_check: unknown option $1"; exit 2 ;;
    esac
    shift 2
done
[ $# = 0 ] && [ -n "$deps" ] || { echo "usage: tools/gpu_check.sh --deps DEPS.tar.xz [--out DIR] [--build DIR] [--skip step,step]"; exit 2; }
deps=$(readlink -f "$deps")
mkdir -p "$out"
out=$(readlink -f "$out")
cd "$(dirname "$0")/.."
commit=$(git rev-parse --short HEAD 2> /dev/null || echo "working tree")
failed=0
wants() { case ",$skip," in *",$1,"*) echo "SKIP $1: asked for"; return 1 ;; *) echo "== $1 ($(date +%T))" ;; esac; }
step() { if [ "$1" = 0 ]; then echo "PASS $2"; else echo "FAIL $2"; failed=1; fi; }

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader || { echo "SKIP everything: no GPU"; exit 1; }
tools/gpu_build.sh "$deps" "$build" || { echo "FAIL build"; exit 1; }

read_gb=4300 bf16_tf=790  # replaced by this run's own ceilings
if wants ceilings; then
    python3 tools/gpu_ceilings.py > "$out/ceilings.jsonl" 2> "$out/ceilings.log"
    step $? "ceilings"
    cat "$out/ceilings.jsonl"
    value() { python3 -c "import json,sys; print(next((r['value'] for r in map(json.loads, open(sys.argv[1])) if r.get('ceiling') == sys.argv[2]), sys.argv[3]))" "$out/ceilings.jsonl" "$1" "$2"; }
    read_gb=$(value read "$read_gb") bf16_tf=$(value "bf16 gemm 8192x8192x8192" "$bf16_tf")
fi
if wants tests; then
    timeout 120 "$build/gpu_test" > "$out/tests.log" 2>&1
    step $? "twin tests: $(grep -E '^\[  (PASSED|FAILED)' "$out/tests.log" | head -1)"
    grep -E "Failure|differ|relative L2|worst" "$out/tests.log" | head -10
fi
if wants sanitizer; then
    if command -v compute-sanitizer > /dev/null; then
        # Cases whose host twin is quick; every kernel family runs in one of them.
        filter='LinearGpu.GroupedProjectionMatchesTwin:LinearGpu.MatchesTwinInEveryFormat:VisionGpu.*:MoeGpu.*:RowsGpu.*:CacheGpu.*'
        timeout 150 compute-sanitizer --tool memcheck "$build/gpu_test" --gtest_filter="$filter" > "$out/memcheck.log" 2>&1
        step $? "memcheck: $(grep 'ERROR SUMMARY' "$out/memcheck.log" | tail -1)"
    else
        echo "SKIP sanitizer: compute-sanitizer is not installed"
    fi
fi
if wants golden; then
    timeout 120 tools/gpu_golden.sh "$build" "$build/golden" > "$out/golden.log" 2>&1
    step $? "goldens and chunk law: $(grep -c ^PASS "$out/golden.log") passed, $(grep -c ^FAIL "$out/golden.log") failed"
    grep ^FAIL "$out/golden.log"
fi
if wants bench; then
    timeout 120 "$build/op_bench" --read "$read_gb" --bf16 "$bf16_tf" --commit "$commit" > "$out/bench.log" 2>&1
    step $? "benchmarks"
    grep '^{' "$out/bench.log" > "$out/bench.jsonl"
    grep -v '^{' "$out/bench.log"
fi
exit $failed
