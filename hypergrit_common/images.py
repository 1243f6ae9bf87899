"""Decode untrusted images to uint8 RGB arrays [h, w, 3].

Size and cost are judged from the header before the pixels are decoded (`hypergrit_common.image_header`), and every
error of a codec becomes `ImageRejected`. Images that may take long are decoded in a child process
(`hypergrit_common.image_process`), which is killed when it exceeds its limits; the others, which are nearly all, in
this process.
"""

from typing import Final

from hypergrit_common.image_codec import (
    ORIENTATION_TAG,
    Decoded,
    Image,
    ImageLimits,
    ImageRejected,
    check_header,
    decode_here,
    decode_jpeg_here,
    to_pixels,
)
from hypergrit_common.image_header import CostlyImageError, JpegHeader, cost_by_header, jpeg_cost, jpeg_header
from hypergrit_common.image_process import isolated

__all__ = [
    "IMAGE_SUFFIXES",
    "ORIENTATION_TAG",
    "STORED_IMAGE_LIMITS",
    "Decoded",
    "Image",
    "ImageLimits",
    "ImageRejected",
    "check_header",
    "decode",
    "decode_jpeg",
    "decode_reduced",
    "to_pixels",
]

IMAGE_SUFFIXES: Final = (
    *("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jp2", "j2k", "jpx", "heic", "heif"),
    *("jfif", "jpe", "pjpeg", "pjp"),
)
"""Ends of the names of files that `decode` reads; HEIC needs a package."""

ISOLATED_S: Final = 0.1
"""Predicted decoding time above which an image is decoded in a child process."""

STORED_IMAGE_LIMITS = ImageLimits(max_pixels=2**31, max_aspect_ratio=float("inf"))
"""Practically no limits, for stored images: `download` has checked them against the configured limits."""


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
        header = jpeg_header(data)
        predicted_s = cost_by_header(data, header, limits.max_pixels).predicted_s
    except CostlyImageError as error:
        raise ImageRejected("too_costly", str(error)) from error
    if predicted_s <= ISOLATED_S:
        return decode_here(data, header, limits, short_side)
    return isolated().decode_reduced(data, limits, short_side)


def decode_jpeg(data: bytes, header: JpegHeader, flags: int, limits: ImageLimits) -> Image:
    """Decode a JPEG with these flags of cv2.imdecode. Raises ImageRejected like `decode`."""
    try:
        predicted_s = jpeg_cost(data, header, limits.max_pixels).predicted_s
    except CostlyImageError as error:
        raise ImageRejected("too_costly", str(error)) from error
    if predicted_s <= ISOLATED_S:
        return decode_jpeg_here(data, flags)
    return isolated().decode_jpeg(data, flags, limits)
