#!/usr/bin/env python3
"""Writes the picture files of this folder and cases.json: what Pillow 13.0.0 decodes from each.

usage: make_pictures.py FOLDER        (pip install pillow==13.0.0 numpy; the stored files were made with these)

`fnv` is FNV-1a 64 over the RGB bytes. `drop`: convert("RGB"), alpha ignored; `blend`: laid on #FDFDFD.
"""
import io
import json
import pathlib
import struct
import sys
import zlib

import numpy as np
from PIL import Image


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def blend(rgba):
    a = rgba[..., 3:].astype(int)
    return ((rgba[..., :3].astype(int) * a + 253 * (255 - a) + 127) // 255).astype(np.uint8)


def png16(pixels):
    """A 16-bit RGBA PNG, which Pillow cannot write."""
    h, w, _ = pixels.shape
    raw = b"".join(b"\0" + pixels[y].astype(">u2").tobytes() for y in range(h))
    chunk = lambda t, d: struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 16, 6, 0, 0, 0)) + \
        chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


def main():
    out = pathlib.Path(sys.argv[1])
    y, x = np.mgrid[0:29, 0:37]
    rgb = np.stack([x * 6 + y, (x * y) % 251, 255 - 8 * y], -1).clip(0, 255).astype(np.uint8)
    alpha = ((x * 9 + y * 3) % 256).astype(np.uint8)
    rgba = np.concatenate([rgb, alpha[..., None]], -1)
    color, clear = Image.fromarray(rgb), Image.fromarray(rgba)
    palette = color.quantize(16)
    files = {}

    def add(name, image, **options):
        b = io.BytesIO()
        image.save(b, **options)
        files[name] = b.getvalue()

    add("rgb.png", color, format="PNG")
    add("rgba.png", clear, format="PNG")
    add("grey.png", color.convert("L"), format="PNG")
    add("grey_alpha.png", clear.convert("LA"), format="PNG")
    add("one_bit.png", color.convert("1"), format="PNG")
    add("palette.png", palette, format="PNG")
    add("palette_clear.png", palette, format="PNG", transparency=3)
    add("photo_420.jpg", color, format="JPEG", quality=80)
    add("photo_444.jpg", color, format="JPEG", quality=92, subsampling=0)
    add("progressive.jpg", color, format="JPEG", quality=70, progressive=True)
    add("grey.jpg", color.convert("L"), format="JPEG")
    add("cmyk.jpg", color.convert("CMYK"), format="JPEG", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate": not applied
    add("exif_rotated.jpg", color, format="JPEG", quality=80, exif=exif)
    add("photo.gif", palette, format="GIF", interlace=1)
    add("clear.gif", palette, format="GIF", transparency=3, interlace=0)
    add("moving.gif", palette, format="GIF", save_all=True, append_images=[Image.new("P", (37, 29))], interlace=0)
    add("lossless.webp", color, format="WEBP", lossless=True)
    add("lossless_clear.webp", clear, format="WEBP", lossless=True, exact=True)
    add("lossy.webp", color, format="WEBP", quality=80)
    add("moving.webp", color, format="WEBP", lossless=True, save_all=True, append_images=[Image.new("RGB", (37, 29))])

    cases = []
    for name, data in files.items():
        image = Image.open(io.BytesIO(data))
        full = np.asarray(image.convert("RGBA"))
        case = {"file": name, "width": image.width, "height": image.height,
                "drop": fnv(np.asarray(image.convert("RGB")).tobytes()), "blend": fnv(blend(full).tobytes())}
        cases.append(case)
        (out / name).write_bytes(data)
    wide = (rgba.astype(int) * 257 - (x[..., None] * 5 % 129)).clip(0, 65535)
    files["wide.png"] = png16(wide)
    narrow = ((wide + 128) // 257).astype(np.uint8)
    cases.append({"file": "wide.png", "width": 37, "height": 29, "drop": fnv(narrow[..., :3].tobytes()),
                  "blend": fnv(blend(narrow).tobytes()), "note": "(v + 128) div 257; Pillow reads 8 bits of 16"})
    (out / "wide.png").write_bytes(files["wide.png"])

    # Resizes of one picture, each in the order of passes that Pillow takes.
    big = Image.fromarray((np.random.default_rng(7).integers(0, 256, (61, 47, 3))).astype(np.uint8))
    big.save(out / "noise.png")
    resizes = [{"to": [w, h], "fnv": fnv(np.asarray(big.resize((w, h), Image.BICUBIC)).tobytes())}
               for w, h in ((46, 60), (20, 13), (47, 20), (20, 61), (90, 30), (30, 90), (100, 140), (5, 50), (46, 58), (46, 59), (1, 1))]
    (out / "cases.json").write_text(json.dumps({"decode": cases, "resize_noise_png": resizes}, indent=1) + "\n")


main()
