#!/usr/bin/env python3
"""Reads every #include line of src/ and apps/ and fails on an arrow that points the wrong way.

usage: check_layers.py TREE | --self-test

The table is the one of ARCHITECTURE.md: part -> parts it may include. `include` is include/deepinfer/.
"""
import pathlib
import re
import sys

ALLOWED = {
    "base": set(),
    "tensor": {"base"},
    "device": {"base", "tensor"},
    "checkpoint": {"base", "tensor"},
    "ops": {"base", "tensor", "device"},
    "backends": {"base", "tensor", "device", "ops"},
    "tokenizer": {"base"},
    "recipe": {"base", "tokenizer"},
    "sampler": {"base", "tensor", "ops"},
    "vision": {"base", "tensor", "ops", "checkpoint"},
    "grammar": {"base", "sampler/token_constraint.h"},
    "kvcache": {"base", "tensor", "device", "ops/cache/cache_view.h"},
    "model": {"base", "tensor", "device", "ops", "checkpoint"},
    "opbench": {"base", "tensor", "device", "ops", "checkpoint"},
    "judge": {"base", "tensor", "device", "ops", "checkpoint", "model", "tokenizer", "vision"},
    "engine": {"base", "tensor", "device", "ops", "checkpoint", "model", "kvcache", "sampler", "grammar", "tokenizer",
               "vision"},
    "server": {"base", "tokenizer", "recipe"},  # the engine through include/deepinfer/
    "apps": {"backends"},  # only to register them; everything else through include/deepinfer/
}
# In src/ops the suffix decides the layer: these are a backend's kernels standing beside their contract.
BACKEND_KERNEL = re.compile(r"_(cpu|avx2|avx512\w*|amx|cuda|sm90|sm100|ascend)\.(cpp|cu)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def wrong_arrows(part, text):
    """Includes of `part` that its row does not allow."""
    out = []
    for target in INCLUDE.findall(text):
        owner = target.split("/")[0]
        if "/" not in target or owner in ("deepinfer", part):
            continue
        if owner in ALLOWED and owner not in ALLOWED[part] and target not in ALLOWED[part]:
            out.append(target)
    return out


def sources(tree):
    for top in ("src", "apps", "include"):
        for path in sorted((tree / top).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                yield path


def main():
    if sys.argv[1:] == ["--self-test"]:
        assert wrong_arrows("tensor", '#include "engine/scheduler.h"\n') == ["engine/scheduler.h"]
        assert wrong_arrows("apps", '#include "model/deepseek_v41.h"\n') == ["model/deepseek_v41.h"]
        assert not wrong_arrows("model", '#include "ops/backend.h"\n#include <vector>\n#include "deepinfer/status.h"\n')
        print("the check fails where it must")
        return 0
    tree = pathlib.Path(sys.argv[1])
    bad = count = 0
    for path in sources(tree):
        relative = path.relative_to(tree)
        part = relative.parts[1] if relative.parts[0] == "src" else relative.parts[0]
        if part == "ops" and BACKEND_KERNEL.search(path.name):
            part = "backends"
        if part == "include":
            row = set()
            found = [t for t in INCLUDE.findall(path.read_text()) if not t.startswith("deepinfer/")]
        else:
            if part not in ALLOWED:
                print(f"{relative}: part '{part}' has no row in the table")
                bad += 1
                continue
            # Tests may use any implementation: they judge across layers.
            if path.name.endswith(("_test.cpp", "_bench.cpp")):
                continue
            found = wrong_arrows(part, path.read_text())
        count += 1
        for target in found:
            print(f"{relative}: includes {target}, which {part} may not use")
            bad += 1
    print(f"{count} files, {bad} wrong arrows")
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
