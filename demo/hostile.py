"""Image files as the web holds them: odd ones that can be read, and broken or malicious ones that cannot."""

import gzip
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from PIL import Image

from common.images import Image as Pixels

EXIF_ORIENTATION = 0x0112
TURN_RIGHT = 6  # EXIF: to be turned a quarter clockwise for display
BOMB_SIDE_PX = 30_000
OVERSIZED_BYTES = 24 << 20


def encode(pixels: Pixels, format_: str, **options: Any) -> bytes:
    """`pixels` [height width 3] as a file of Pillow's `format_`."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format_, **options)
    return buffer.getvalue()


def cmyk_jpeg(pixels: Pixels) -> bytes:
    """A JPEG for the printing press."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def deep_png(pixels: Pixels) -> bytes:
    """A PNG with 16 bits a channel."""
    return bytes(cv2.imencode(".png", pixels[..., ::-1].astype(np.uint16) * 257)[1])


def alpha_png(pixels: Pixels) -> bytes:
    """A PNG with a transparent frame 4 px wide."""
    alpha = np.zeros(pixels.shape[:2], np.uint8)
    alpha[4:-4, 4:-4] = 255
    return encode(np.dstack([pixels, alpha]), "PNG")


def turned_jpeg(pixels: Pixels) -> bytes:
    """A JPEG as a camera held upright writes it: lying on its side, with the EXIF flag that says so."""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = TURN_RIGHT
    return encode(np.ascontiguousarray(np.rot90(pixels)), "JPEG", quality=92, exif=exif)


FORMS: dict[str, Callable[[Pixels], bytes]] = {
    "plain.jpg": lambda pixels: encode(pixels, "JPEG", quality=92),
    "plain.png": lambda pixels: encode(pixels, "PNG"),
    "plain.webp": lambda pixels: encode(pixels, "WEBP", quality=90),
    "palette.gif": lambda pixels: encode(pixels, "GIF"),
    "cmyk.jpg": cmyk_jpeg,
    "deep.png": deep_png,
    "alpha.png": alpha_png,
    "turned.jpg": turned_jpeg,
}
"""Ways to write one picture, by the file name they are served under; every one of them can be read."""


def png(width: int, height: int, rows: bytes) -> bytes:
    """A grey PNG whose header says `width` x `height`, whatever `rows` holds."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def grey(width: int, height: int) -> Pixels:
    return np.full((height, width, 3), 128, np.uint8)


def truncated_jpeg() -> bytes:
    """The first 40 % of a JPEG of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    whole = encode(noise, "JPEG", quality=90)
    return whole[: len(whole) * 2 // 5]


HTML = b"<!DOCTYPE html><html><head><title>404</title></head><body>This image is no longer available.</body></html>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="300" height="300"><circle cx="150" cy="150" r="99"/></svg>'

FILES: dict[str, Callable[[], bytes]] = {
    "truncated.jpg": truncated_jpeg,
    "page.jpg": lambda: HTML,
    "drawing.svg": lambda: SVG,
    "empty.jpg": lambda: b"",
    "tiny.png": lambda: encode(grey(8, 8), "PNG"),
    "bomb.png": lambda: png(BOMB_SIDE_PX, BOMB_SIDE_PX, bytes(BOMB_SIDE_PX + 1)),
    "packed.jpg": lambda: gzip.compress(bytes(OVERSIZED_BYTES)),
    "strip.png": lambda: encode(grey(2400, 64), "PNG"),
}
"""Bodies that are no usable image, by the file name they are served under."""
