"""Decode untrusted images to uint8 RGB arrays [h, w, 3].

The size in the header is checked before the pixels are decoded, and every error of a codec becomes `ImageRejected`.
"""

import io
import re
import struct
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import PIL.Image
from numpy.typing import NDArray

from common.config import check_range

Image = NDArray[np.uint8]
Reason = Literal["not_an_image", "undecodable", "too_many_pixels", "too_small", "extreme_aspect_ratio"]

MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
JPEG_END = b"\xff\xd9"
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")
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
MEMORY_ADDRESS = re.compile(r" ?<[^<>]* at 0x[0-9a-f]+>")
"""Memory addresses in messages of Pillow. They are removed, since they would make a shard differ from run to run."""


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """Limits on the size that the header of an image declares."""

    # largest width times height, in pixels; larger images are not decoded
    max_pixels: int = 60_000_000
    # smallest shorter side of the downloaded image, in pixels
    min_side_px: int = 1
    # largest ratio of the longer to the shorter side
    max_aspect_ratio: float = 20.0

    def __post_init__(self) -> None:
        check_range(self, "max_pixels", "min_side_px", "max_aspect_ratio", least=1)


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


def decode(data: bytes, limits: ImageLimits | None = None) -> Image:
    """Decode an image, or the first frame of an animation, to upright RGB pixels. Transparent parts become white.

    Raises ImageRejected if the image exceeds a limit or is damaged.
    """
    return decode_reduced(data, limits or ImageLimits(), None).pixels


def decode_reduced(data: bytes, limits: ImageLimits, short_side: int | None) -> Decoded:
    """Decode like `decode`; if `short_side` is given, decode a large JPEG at a reduced size.

    The size is 1/2, 1/4 or 1/8 of the original, such that the shorter side is still at least twice `short_side`.
    libjpeg then skips the high frequencies of the DCT, which the final resize would remove anyway. Raises ImageRejected
    like `decode`.
    """
    try:
        with PIL.Image.open(io.BytesIO(data), formats=FORMATS) as file:
            check_header(*file.size, limits)  # before getexif, which decodes a PNG
            orientation = orientation_of(file)
            width, height = file.size[::-1] if orientation in (5, 6, 7, 8) else file.size
            is_jpeg = file.format in ("JPEG", "MPO")
            is_plain = is_jpeg and file.mode == "RGB" and orientation not in TRANSPOSES
            if is_jpeg and short_side is not None:
                scale = 2 * short_side / min(file.size)
                file.draft(file.mode, (int(file.size[0] * scale), int(file.size[1] * scale)))
            # OpenCV silently fills the missing part of a truncated file, while Pillow raises an error. Files without an
            # end marker are therefore decoded by Pillow.
            if is_plain and file.size == (width, height) and data.endswith(JPEG_END):
                pixels = _decode_jpeg(data)
            else:
                pixels = to_pixels(file)
            return Decoded(pixels, width, height, "jpeg" if is_jpeg else str(file.format).lower(), is_plain)
    except PIL.Image.DecompressionBombError as error:
        raise ImageRejected("too_many_pixels", str(error)) from error
    except CODEC_ERRORS as error:
        reason: Reason = "undecodable" if data.startswith(MAGIC) else "not_an_image"
        text = MEMORY_ADDRESS.sub("", str(error))
        raise ImageRejected(reason, f"{type(error).__name__}: {text}"[:200]) from error


STORED_IMAGE_LIMITS = ImageLimits(max_pixels=2**31, max_aspect_ratio=float("inf"))
"""Practically no limits, for stored images: `download` has checked them against the configured limits."""


def _decode_jpeg(data: bytes) -> Image:
    """Decode a complete, upright RGB JPEG at full size: the same pixels as Pillow, in three quarters of the time."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if pixels is None:
        raise ValueError("broken JPEG")
    return np.asarray(pixels, np.uint8)


def check_header(width: int, height: int, limits: ImageLimits) -> None:
    """Raise ImageRejected if the size of an image exceeds a limit."""
    short, long = min(width, height), max(width, height)
    if width * height > limits.max_pixels:
        raise ImageRejected("too_many_pixels", f"{width} x {height} px")
    if short < limits.min_side_px:
        raise ImageRejected("too_small", f"{short} px")
    if long > limits.max_aspect_ratio * short:
        raise ImageRejected("extreme_aspect_ratio", f"{width} x {height} px")


def orientation_of(image: PIL.Image.Image) -> int:
    """Return the EXIF orientation that has to be applied to an image; 1 for none."""
    if image.format == "TIFF":  # Pillow itself applies the orientation of a TIFF
        return 1
    return int(image.getexif().get(ORIENTATION_TAG, 1))


def to_pixels(image: PIL.Image.Image) -> Image:
    """Convert an image to upright RGB pixels. Raises ValueError for modes without a defined range (I and F)."""
    transpose = TRANSPOSES.get(orientation_of(image))
    rgb = _to_rgb(image)
    return np.array(rgb if transpose is None else rgb.transpose(transpose))


def _to_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    """Convert to RGB. Of 16 bits the upper 8 are kept; transparent parts become white.

    Raises ValueError for modes I and F, whose range is not defined.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode.startswith("I;16"):
        return PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"pixel values of mode {image.mode} have no defined range")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
