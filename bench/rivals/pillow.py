#!/usr/bin/env python3
"""Our way from a picture's bytes to patches against Pillow's, on the same files, one thread each, in turns.

    python3 -m venv env && env/bin/pip install pillow==13.0.0 numpy
    env/bin/python bench/rivals/pillow.py [--program build/deepinfer] [--rounds 5] FILE...

One JSON line a file: `pillow_ms` over `ours_ms` is `times`. Pillow decodes, converts to RGB, resizes with BICUBIC,
pads with grey 127 and cuts patches of 14 with numpy; the target is the one that ours planned.
"""
import argparse
import io
import json
import statistics
import subprocess
import time

import numpy as np
from PIL import Image


def pillow_ms(raw, width, height):
    begin = time.perf_counter()
    image = Image.open(io.BytesIO(raw)).convert("RGB")
    scale = min(width / image.width, height / image.height)
    fit = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.BICUBIC)
    canvas = Image.new("RGB", (width, height), (127, 127, 127))
    canvas.paste(fit, ((width - fit.width) // 2, (height - fit.height) // 2))
    cells = np.asarray(canvas).reshape(height // 14, 14, width // 14, 14, 3)
    np.ascontiguousarray(cells.transpose(0, 2, 4, 1, 3))
    return (time.perf_counter() - begin) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/deepinfer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    for path in args.files:
        with open(path, "rb") as f:
            raw = f.read()
        ours, theirs = [], []
        for _ in range(args.rounds):
            run = subprocess.run(
                [args.program, "bench", "ve", "--synthetic", "ve-slice", "--threads", "1", "--warmup", "1",
                 "--repeat", "3", "--image", path],
                check=True, capture_output=True, text=True)
            record = json.loads(run.stdout)
            ours.append(record["cpu_ms_per_image"])
            theirs.append(statistics.median(pillow_ms(raw, *record["target"]) for _ in range(3)))
        mine, pillow = statistics.median(ours), statistics.median(theirs)
        print(json.dumps({"file": path, "target": record["target"], "ours_ms": round(mine, 2),
                          "pillow_ms": round(pillow, 2), "times": round(pillow / mine, 2)}), flush=True)


if __name__ == "__main__":
    main()
