"""The codecs: bytes of an untrusted image to a uint8 RGB array [h, w, 3], in this process.

Every error of a codec becomes `ImageRejected`. `hypergrit_common.images` judges the cost first, and is what other modules call.
"""

import io
import math
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import cv2
import numpy as np
import PIL.AvifImagePlugin
import PIL.Image
from numpy.typing import NDArray

from hypergrit_common.errors import is_machine_error
from hypergrit_common.image_header import (
    READ,
    SIMPLE_FRAMES,
    JpegHeader,
    has_webp_alpha,
    image_size,
    is_picture,
    is_still_webp,
    type_of,
)

Image = NDArray[np.uint8]
Reason = Literal["not_an_image", "undecodable", "too_many_pixels", "too_small", "extreme_aspect_ratio", "too_costly"]

STRIP_PIXELS: Final = 4_000_000
"""Pixels that are converted at a time, so that a large image is not in memory several times."""
JPEG_END: Final = b"\xff\xd9"
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "JPEG2000")
HEIC_FIX: Final = "HEIC, which needs `pip install '.[heic]'` in the folder of the package"
warnings.filterwarnings("ignore", module=r"PIL\.")  # about metadata, and sizes, for which `check_header` has limits
PNG: Final = b"\x89PNG\r\n\x1a\n"
PIL.AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the limit on CPU time counts all threads
ORIENTATION_TAG = 0x0112
TRANSPOSES = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}
# Exceptions that Pillow raises for damaged files.
CODEC_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    struct.error,
    NotImplementedError,
    RuntimeError,
)
REDUCTIONS: Final = {1: 0, 2: 16, 4: 32, 8: 64}
"""Reduced size of a JPEG -> its bits among the flags of cv2.imdecode, as in cv2.IMREAD_REDUCED_GRAYSCALE_2."""
MEMORY_ADDRESS = re.compile(r" ?<[^<>]* at 0x[0-9a-f]+>")
"""Memory addresses in messages of Pillow. They are removed, since they would make a shard differ from run to run."""


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """Limits on the size that the header of an image declares."""

    max_pixels: int = 60_000_000
    """Largest width times height; so many pixels take 180 MB while they are decoded."""
    min_side_px: int = 1
    """Smallest shorter side."""
    max_aspect_ratio: float = 20.0
    """Largest ratio of the longer to the shorter side: banners and rules of web pages have more."""


class ImageRejected(Exception):  # noqa: N818 (a property of the input, not an error of the program)
    """The bytes are not a usable image. `reason` is a drop reason (schemas.status), `detail` a number or message."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Decoded:
    """Pixels of an image, with the format and the size of the original.

    The original size is in pixels, in upright orientation. `is_plain` is true for an RGB JPEG without an orientation
    tag.
    """

    pixels: Image
    original_width: int
    original_height: int
    original_format: str
    is_plain: bool


def decode_jpeg_here(data: bytes, flags: int) -> Image:
    """Decode a JPEG with these flags of cv2.imdecode. Raises ImageRejected."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise ImageRejected("undecodable", "broken JPEG")
    return np.asarray(pixels, np.uint8)


def decode_here(data: bytes, header: JpegHeader | None, limits: ImageLimits, short_side: int | None) -> Decoded:
    """Decode an image to upright RGB pixels, a JPEG at a reduced size if `short_side` is given.

    `header` is that of a JPEG, None if it is damaged and for other formats (hypergrit_common.image_header.jpeg_header).
    Raises ImageRejected, and OSError if the machine lacks something (`is_machine_error`).
    """
    try:
        if (plain := _decode_plain_jpeg(data, header, limits, short_side)) is not None:
            return plain
        if is_still_webp(data) and math.prod(image_size(data)) > STRIP_PIXELS:
            return _decode_webp(data, limits)
        formats = (*FORMATS, *heif_formats()) if type_of(data) == "HEIC" else FORMATS
        with PIL.Image.open(io.BytesIO(data), formats=formats) as file:
            check_header(*file.size, limits)  # before getexif, which decodes a PNG
            orientation = orientation_of(file)
            width, height = file.size[::-1] if orientation in (5, 6, 7, 8) else file.size
            is_jpeg = file.format in ("JPEG", "MPO")
            is_plain = is_jpeg and file.mode == "RGB" and orientation not in TRANSPOSES
            reduction = reduction_for(*file.size, short_side) if is_jpeg else 1
            if is_plain and data.endswith(JPEG_END):
                if (pixels := _read_jpeg(data, reduction)) is None:
                    raise ValueError("broken JPEG")
            else:
                if reduction > 1:
                    file.draft(file.mode, (file.size[0] // reduction, file.size[1] // reduction))
                pixels = to_pixels(file)
            return Decoded(pixels, width, height, "jpeg" if is_jpeg else str(file.format).lower(), is_plain)
    except PIL.Image.DecompressionBombError as error:
        raise ImageRejected("too_many_pixels", str(error)) from error
    except CODEC_ERRORS as error:
        if is_machine_error(error):
            raise
        if data.startswith(PNG) and (lean := without_metadata(data)) != data:
            return decode_here(lean, header, limits, short_side)
        kind, text = type_of(data), MEMORY_ADDRESS.sub("", str(error))
        if kind == "HEIC" and not heif_formats():
            raise ImageRejected("not_an_image", HEIC_FIX) from error
        if kind and kind not in READ:
            raise ImageRejected("not_an_image", f"{kind}, which is not read") from error
        reason: Reason = "undecodable" if is_picture(data) else "not_an_image"
        raise ImageRejected(reason, f"{kind}{': ' if kind else ''}{type(error).__name__}: {text}"[:200]) from error


def without_metadata(png: bytes) -> bytes:
    """Return a PNG with what its pixels need alone, and an intact orientation: Pillow refuses one with other damaged chunks."""
    found, start = [PNG], len(PNG)
    while start < len(png):
        end = start + 12 + int.from_bytes(png[start : start + 4], "big")
        kind, content = png[start + 4 : start + 8], png[start + 4 : end - 4]
        is_intact_exif = kind == b"eXIf" and png[end - 4 : end] == zlib.crc32(content).to_bytes(4, "big")
        if kind[:1].isupper() or kind == b"tRNS" or is_intact_exif:
            found.append(png[start:end])
        start = end
    return b"".join(found)


@cache
def heif_formats() -> tuple[str, ...]:
    """Return Pillow's name of HEIC if the extra `heic` is installed, which is made known to it; else nothing."""
    try:
        import pillow_heif
    except ImportError:
        return ()
    pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)
    return ("HEIF",)


def reduction_for(width: int, height: int, short_side: int | None) -> int:
    """Return the reduction at which the shorter side is still at least twice `short_side`: 1, 2, 4 or 8."""
    if short_side is None:
        return 1
    scale = 2 * short_side / min(width, height)
    least = min(side // max(1, int(side * scale)) for side in (width, height))
    return max(reduction for reduction in REDUCTIONS if reduction <= max(1, least))


def _decode_plain_jpeg(
    data: bytes, header: JpegHeader | None, limits: ImageLimits, short_side: int | None
) -> Decoded | None:
    """Decode an RGB JPEG without Exif and XMP as Pillow's header would have it, whose parser takes 0.1 ms longer.

    Returns None for other data, and for those that OpenCV rejects. Raises ImageRejected if the size exceeds a limit.
    """
    if header is None or not data.endswith(JPEG_END):
        return None
    if header.frame not in SIMPLE_FRAMES or header.n_channels != 3 or header.has_app1:
        return None
    size = header.width, header.height
    check_header(*size, limits)
    reduction = reduction_for(*size, short_side)
    pixels = _read_jpeg(data, reduction)
    if pixels is None or pixels.shape != (-(-size[1] // reduction), -(-size[0] // reduction), 3):
        return None
    return Decoded(pixels, *size, "jpeg", is_plain=True)


def _read_jpeg(data: bytes, reduction: int) -> Image | None:
    """Decode a complete JPEG at 1/`reduction` of its size to the pixels of Pillow, in three quarters of its time; None if it is broken.

    OpenCV silently fills the missing part of a truncated file, while Pillow raises an error. Files without an end marker
    are therefore decoded by Pillow. OpenCV also finds orientations in damaged Exif data, which Pillow does not.
    """
    flags = REDUCTIONS[reduction] | cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    return None if pixels is None else np.asarray(pixels, np.uint8)


def check_header(width: int, height: int, limits: ImageLimits) -> None:
    """Raise ImageRejected if the size of an image exceeds a limit."""
    short, long = min(width, height), max(width, height)
    if width * height > limits.max_pixels:
        raise ImageRejected("too_many_pixels", f"{width} x {height} px")
    if short < limits.min_side_px:
        raise ImageRejected("too_small", f"{short} px")
    if long > limits.max_aspect_ratio * short:
        raise ImageRejected("extreme_aspect_ratio", f"{width} x {height} px")


def _decode_webp(data: bytes, limits: ImageLimits) -> Decoded:
    """Decode a large still WebP: the same pixels as Pillow, in a third of the memory."""
    width, height = image_size(data)
    check_header(width, height, limits)
    flags = cv2.IMREAD_UNCHANGED if has_webp_alpha(data) else cv2.IMREAD_COLOR_RGB
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None or pixels.shape[:2] != (height, width):
        raise ValueError("broken WebP")
    rgb = np.asarray(pixels, np.uint8)
    if rgb.shape[2] == 4:
        rgb = np.empty((height, width, 3), np.uint8)
        for rows in _strips(height, width):
            strip = PIL.Image.fromarray(cv2.cvtColor(pixels[rows], cv2.COLOR_BGRA2RGBA))
            rgb[rows] = np.asarray(_strip_to_rgb(strip))
    elif flags == cv2.IMREAD_UNCHANGED:  # the header announces transparency that the frame lacks
        cv2.cvtColor(rgb, cv2.COLOR_BGR2RGB, dst=rgb)
    return Decoded(rgb, width, height, "webp", is_plain=False)


def _strips(height: int, width: int) -> Iterator[slice]:
    """Yield the rows of an image in strips of about `STRIP_PIXELS`."""
    n_rows = max(1, STRIP_PIXELS // width)
    return (slice(top, min(top + n_rows, height)) for top in range(0, height, n_rows))


def orientation_of(image: PIL.Image.Image) -> int:
    """Return the EXIF orientation that has to be applied to an image; 1 for none, and if its metadata are damaged."""
    if image.format == "TIFF":  # Pillow itself applies the orientation of a TIFF
        return 1
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except CODEC_ERRORS as error:
        if is_machine_error(error):
            raise
        return 1


def to_pixels(image: PIL.Image.Image) -> Image:
    """Convert an image to upright RGB pixels. Raises ValueError for modes without a defined range (I and F)."""
    orientation = orientation_of(image)
    pixels = _to_rgb(image)
    if orientation in TRANSPOSES:
        return np.array(PIL.Image.fromarray(pixels).transpose(TRANSPOSES[orientation]))
    return pixels


def _to_rgb(image: PIL.Image.Image) -> Image:
    """Convert any mode to RGB: 16 bits to the upper 8, transparency to white. Raises ValueError for modes I and F."""
    if image.mode in ("I", "F"):
        raise ValueError(f"pixel values of mode {image.mode} have no defined range")
    image.load()
    width, height = image.size
    if width * height <= STRIP_PIXELS:
        return np.array(_strip_to_rgb(image))
    pixels = np.empty((height, width, 3), np.uint8)
    for rows in _strips(height, width):
        pixels[rows] = np.asarray(_strip_to_rgb(image.crop((0, rows.start, width, rows.stop))))
    return pixels


def _strip_to_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16"):
        return PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
