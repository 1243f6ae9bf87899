"""Image files of the kinds found on the web: unusual but readable variants, and broken or malicious files."""

import gzip
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from PIL import Image

from hypergrit_common.images import Image as Pixels

EXIF_ORIENTATION = 0x0112
ROTATE_90_CW = 6  # EXIF orientation: rotate 90 degrees clockwise for display
BOMB_SIDE_PX = 30_000
OVERSIZED_BYTES = 24 << 20


def encode(pixels: Pixels, format_: str, **options: Any) -> bytes:
    """Encode `pixels` [height width 3] in a format of Pillow."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format_, **options)
    return buffer.getvalue()


def cmyk_jpeg(pixels: Pixels) -> bytes:
    """Encode a JPEG in CMYK, as used for printing."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def deep_png(pixels: Pixels) -> bytes:
    """Encode a PNG with 16 bits per channel."""
    return bytes(cv2.imencode(".png", pixels[..., ::-1].astype(np.uint16) * 257)[1])


def alpha_png(pixels: Pixels) -> bytes:
    """Encode a PNG with a transparent frame of 4 px."""
    alpha = np.zeros(pixels.shape[:2], np.uint8)
    alpha[4:-4, 4:-4] = 255
    return encode(np.dstack([pixels, alpha]), "PNG")


def rotated_jpeg(pixels: Pixels) -> bytes:
    """Encode a JPEG that is stored rotated, with the EXIF orientation that corrects it, as phones do."""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = ROTATE_90_CW
    return encode(np.ascontiguousarray(np.rot90(pixels)), "JPEG", quality=92, exif=exif)


IMAGE_VARIANTS: dict[str, Callable[[Pixels], bytes]] = {
    "plain.jpg": lambda pixels: encode(pixels, "JPEG", quality=92),
    "plain.png": lambda pixels: encode(pixels, "PNG"),
    "plain.webp": lambda pixels: encode(pixels, "WEBP", quality=90),
    "palette.gif": lambda pixels: encode(pixels, "GIF"),
    "cmyk.jpg": cmyk_jpeg,
    "deep.png": deep_png,
    "alpha.png": alpha_png,
    "turned.jpg": rotated_jpeg,
}
"""Encoders of readable images, by the file name that the server uses for them."""


def png(width: int, height: int, rows: bytes) -> bytes:
    """Encode a grey PNG whose header declares `width` x `height` independently of the size of `rows`."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def grey(width: int, height: int) -> Pixels:
    """Return a uniform grey image."""
    return np.full((height, width, 3), 128, np.uint8)


def truncated_jpeg() -> bytes:
    """Return the first 40 % of a JPEG of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    complete = encode(noise, "JPEG", quality=90)
    return complete[: len(complete) * 2 // 5]


HTML = b"<!DOCTYPE html><html><head><title>404</title></head><body>This image is no longer available.</body></html>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="300" height="300"><circle cx="150" cy="150" r="99"/></svg>'

BROKEN_FILES: dict[str, Callable[[], bytes]] = {
    "truncated.jpg": truncated_jpeg,
    "page.jpg": lambda: HTML,
    "drawing.svg": lambda: SVG,
    "empty.jpg": lambda: b"",
    "tiny.png": lambda: encode(grey(8, 8), "PNG"),
    "bomb.png": lambda: png(BOMB_SIDE_PX, BOMB_SIDE_PX, bytes(BOMB_SIDE_PX + 1)),
    "packed.jpg": lambda: gzip.compress(bytes(OVERSIZED_BYTES)),
    "strip.png": lambda: encode(grey(2400, 64), "PNG"),
}
"""Response bodies that are not usable images, by the file name that the server uses for them."""
