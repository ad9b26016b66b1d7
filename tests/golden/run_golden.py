#!/usr/bin/env python3
"""Runs `deepinfer forward` on a golden file and lets compare.py judge the dump.

usage: run_golden.py --binary PATH --model DIR --golden FILE.xz --mode exact|forced|free [--chunk N] [--backend NAME] [--isa LEVEL]

exact   uses the twins with fp64 between rounding points: everything equal, choices included
forced  uses the fast path with the golden choices (a decode file also needs the choices of its prompt file)
free    uses the fast path with its own choices

The DSpark tensors (draft.*, mtp*) of a backend that does not draft (--backend cuda) are left out.
"""
import argparse
import lzma
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77  # what CTest counts as a skip
WITHOUT_DRAFTS = "^(?!mtp|draft)"


def unpack(packed, folder):
    out = folder / packed.name.removesuffix(".xz")
    with lzma.open(packed) as src, open(out, "wb") as dst:
        shutil.copyfileobj(src, dst)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--golden", type=pathlib.Path, required=True)
    ap.add_argument("--mode", choices=("exact", "forced", "free"), default="exact")
    ap.add_argument("--chunk", type=int, default=512)
    ap.add_argument("--backend", default="cpu")
    ap.add_argument("--isa", default="")
    ap.add_argument("--report", action="store_true", help="print every tensor")
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        golden = unpack(a.golden, folder)
        dump = folder / "dump.safetensors"
        command = [a.binary, "forward", "--model", a.model, "--input", str(golden), "--output", str(dump), "--chunk", str(a.chunk)]
        if a.mode == "exact":
            command.append("--exact")
        else:
            command += ["--backend", a.backend] + (["--isa", a.isa] if a.isa else [])
        if a.mode == "forced":
            command += ["--force", str(golden)]
            if ".decode." in golden.name:
                prompt = a.golden.with_name(a.golden.name.replace(".decode.", "."))
                command += ["--force", str(unpack(prompt, folder))]
        # The spans of img1 show the pictures of vision_a and vision_b, that of img2 the second.
        for picture in {"img1": "ab", "img2": "b"}.get(golden.name.split(".")[0], ""):
            command += ["--image", str(unpack(a.golden.with_name(f"vision_{picture}.exact.safetensors.xz"), folder))]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode != 0:
            if a.isa and "is not available on this machine" in done.stderr:
                print(f"NOT RUN: this machine has no {a.isa}")
                return SKIPPED
            return 1
        judge = [sys.executable, str(HERE / "compare.py"), str(golden), str(dump), "--mode", a.mode]
        if a.mode != "exact" and a.backend == "cuda":
            judge += ["--only", WITHOUT_DRAFTS]
        floors = a.golden.parent / "floors.json"
        if a.mode != "exact":
            judge += ["--floors", str(floors)]
        if not a.report:
            judge.append("--quiet")
        return subprocess.run(judge).returncode


if __name__ == "__main__":
    sys.exit(main())
