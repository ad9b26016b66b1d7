#!/usr/bin/env python3
"""Repository self-check: file lengths, leftover words, absolute paths, dead links in the guide documents.

usage: check_tidy.py TREE
"""
import pathlib
import re
import subprocess
import sys

MAX_LINES = 700
GENERATED = {"src/tokenizer/unicode_tables.cpp"}
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
PATHS = re.compile(r"(?<![\w.])/(work|home|root|farm)/[\w.]")
CODE = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
GUIDES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]


def main():
    tree = pathlib.Path(sys.argv[1])
    files = subprocess.run(["git", "-c", f"safe.directory={tree}", "-C", str(tree), "ls-files", "-co", "--exclude-standard"],
                           check=True, capture_output=True, text=True).stdout.split("\n")
    faults = []
    for name in filter(None, files):
        path = tree / name
        if not path.is_file():
            continue
        if path.suffix in CODE or path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            if path.name != pathlib.Path(__file__).name:
                for i, line in enumerate(text.splitlines(), 1):
                    if path.suffix in CODE and LEFTOVER.search(line):
                        faults.append(f"{name}:{i}: leftover word: {line.strip()[:80]}")
                    if PATHS.search(line):
                        faults.append(f"{name}:{i}: absolute path of a machine: {line.strip()[:80]}")
            lines = text.count("\n")
            if path.suffix in CODE - {".py"} and lines > MAX_LINES and name not in GENERATED:
                faults.append(f"{name}: {lines} lines, at most {MAX_LINES}: look for a second idea inside")
    for guide in GUIDES:
        if not (tree / guide).is_file():
            faults.append(f"{guide} is missing")
            continue
        for target in re.findall(r"\]\(([^)#]+)\)", (tree / guide).read_text()):
            if "://" not in target and not (tree / target).exists():
                faults.append(f"{guide}: dead link {target}")
    for fault in faults:
        print(fault)
    print(f"{len(files) - 1} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
