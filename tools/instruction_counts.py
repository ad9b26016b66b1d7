#!/usr/bin/env python3
"""Counts the instructions of the hot CPU kernels under callgrind and compares them with bench/instructions.json.

usage: instruction_counts.py [--binary build/deepinfer] [--limit 0.03] [--update]

One answer of the demonstration checkpoint, one thread, AVX2 kernels (valgrind has no AVX-512): unlike seconds, the
counts repeat on a busy machine. Takes a minute or three and needs Debian's valgrind (exit 77 without). Exit 1 and a loud line if a kernel needs more
instructions than the table says by more than the limit, or vanished from the run; --update rewrites the table once the change is understood.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parent.parent
TABLE = TREE / "bench" / "instructions.json"
RUN = ["generate", "--isa", "avx2", "--threads", "1", "--async-scheduling", "0", "--nextn", "0", "--temperature", "0", "--thinking", "0", "--ignore-eos", "--max-tokens", "6",
       "What is the capital of France?"]
# A kernel is every function whose name has this in it; the counts are their own instructions, not what they call.
KERNELS = {
    "gemm fp8, one row": "few_rows<deepinfer::cpu::(anonymous namespace)::Fp8Words, 1>",
    "gemm fp8, many rows": "many_rows<deepinfer::cpu::(anonymous namespace)::Fp8Words>",
    "gemm fp4, one row": "few_rows<deepinfer::cpu::(anonymous namespace)::Fp4Bytes, 1>",
    "gemm fp4, many rows": "many_rows<deepinfer::cpu::(anonymous namespace)::Fp4Bytes>",
    "gemm bf16, one row": "gemm_few<deepinfer::cpu::(anonymous namespace)::Bf16Panel, 1>",
    "attention": "attend_keys",
    "attention, window keys": "widen_window_key",
    "attention, entries": "widen_entry_key",
    "hyper-connections": "mix_sums",
    "packing": "pack_panels",
}


def count(binary):
    """Instructions a kernel, from callgrind's own totals per function."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "callgrind.out"
        subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(binary), *RUN], check=True, capture_output=True)
        # --auto=no: annotated sources would repeat counts in their lines about calls.
        text = subprocess.run(["callgrind_annotate", "--auto=no", "--threshold=100", "--show-percs=no", str(out)], check=True, capture_output=True, text=True).stdout
    total = dict.fromkeys(KERNELS, 0)
    for line in text.splitlines():
        match = re.match(r"\s*([\d,]+)\s+(.*)", line)
        if not match:
            continue
        for name, part in KERNELS.items():
            if part in match.group(2):
                total[name] += int(match.group(1).replace(",", ""))
    return total


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", type=pathlib.Path, default=TREE / "build" / "deepinfer")
    ap.add_argument("--limit", type=float, default=0.03)
    ap.add_argument("--update", action="store_true")
    a = ap.parse_args()
    if shutil.which("valgrind") is None:
        print("NOT RUN: instruction counts need valgrind", file=sys.stderr)
        return 77
    now = count(a.binary)
    if a.update:
        TABLE.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
    before = json.loads(TABLE.read_text(encoding="utf-8"))
    bad = 0
    for name in sorted(set(now) | set(before)):
        x, y = before.get(name, 0), now.get(name, 0)
        change = y / x - 1 if x else float("inf") if y else 0.0
        worse = y == 0 or change > a.limit
        bad += worse
        print(f"{'WORSE ' if worse else '      '}{name:28} {x:14,} -> {y:14,}  {change:+7.1%}")
    if bad:
        print(f"{bad} kernels need more instructions than {TABLE.relative_to(TREE)} says (or did not run)", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
