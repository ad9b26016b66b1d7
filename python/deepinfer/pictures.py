"""Pictures in messages: paths, bytes, PIL images and arrays to data: URLs."""

from __future__ import annotations

import base64
import io
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any


def _png(array: Any) -> bytes:
    """A numpy array uint8 [height, width, 3] as PNG."""
    if str(array.dtype) != "uint8" or len(array.shape) != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ValueError(f"a picture array is {array.dtype} {list(array.shape)}, expected uint8 [height, width, 3]")
    height, width = int(array.shape[0]), int(array.shape[1])
    raw = b"".join(b"\0" + array[y].tobytes() for y in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 1)) + chunk(b"IEND", b"")


def picture_bytes(picture: Any) -> bytes:
    """The encoded bytes of a path, bytes, a PIL image (saved as PNG) or a numpy array."""
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return bytes(picture)
    if isinstance(picture, (str, os.PathLike)):
        with open(picture, "rb") as f:
            return f.read()
    if hasattr(picture, "save") and hasattr(picture, "convert"):
        buffer = io.BytesIO()
        picture.convert("RGBA" if "A" in picture.mode or "transparency" in picture.info else "RGB").save(buffer, format="PNG")
        return buffer.getvalue()
    if hasattr(picture, "dtype") and hasattr(picture, "shape"):
        return _png(picture)
    raise TypeError(f"a picture is {type(picture).__name__}, expected a path, bytes, a PIL image or a numpy array")


def with_data_urls(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its {"type": "image", "image": X} parts as image_url parts."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message  # type: ignore[return-value]
    parts = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") == "image" and "image" in part:
            # The declared type is a formality: the format is told by content.
            url = "data:image/png;base64," + base64.b64encode(picture_bytes(part["image"])).decode("ascii")
            part = {"type": "image_url", "image_url": {"url": url, "detail": part.get("detail", "high")}}
        parts.append(part)
    return {**message, "content": parts}
