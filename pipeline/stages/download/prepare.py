"""From the body of an answer to the image that is stored: verify, rotate, resize and encode it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hypergrit_common.images import Decoded, Image, ImageRejected, decode_reduced
from pipeline.faults import Fault
from pipeline.images import MAX_SIDE_PX, ResizeConfig, encode_jpeg, keeps_size, resize_as
from pipeline.stages.download.config import DownloadConfig
from schemas.table import Drop

PIXEL_BYTES: Final = 4
METADATA_BYTES: Final = 1 << 17
"""A stored JPEG has at most PIXEL_BYTES per pixel and METADATA_BYTES besides, so that a shard of them is bounded."""


@dataclass(frozen=True)
class Outcome:
    """The result for a row.

    Attributes:
        fields: the new columns of DOWNLOADED that are known.
        image: bytes to store; None for a dropped row.
        drop: why the row is dropped; None: it is kept.
        fault: what the stage raised, which `drop` tells too; None: nothing.
    """

    fields: dict[str, Any]
    image: bytes | None = None
    drop: Drop | None = None
    fault: Fault | None = None


Stored = tuple[bytes, int, int]
"""The JPEG of an image, its width and its height in pixels."""


def resize_and_encode(pixels: Image, config: ResizeConfig) -> Stored:
    """Resize an image and encode it. Raises ImageRejected for a side that no JPEG can have."""
    pixels = resize_as(pixels, config)
    height, width = pixels.shape[:2]
    check_sides(width, height)
    return encode_jpeg(pixels, config.jpeg_quality), width, height


def check_sides(width: int, height: int) -> None:
    """Raise ImageRejected for a side that no JPEG can have, possible with resize.mode=none and high limits."""
    if max(width, height) > MAX_SIDE_PX:
        detail = f"{width} x {height} px, but the side of a JPEG has at most {MAX_SIDE_PX}"
        raise ImageRejected("too_many_pixels", detail)


def prepare_image(
    data: bytes, config: DownloadConfig, store: Callable[[Image, ResizeConfig], Stored] = resize_and_encode
) -> Outcome:
    """Verify, rotate, resize and encode one image; an upright RGB JPEG of the right size keeps its bytes.

    It is encoded again, by `store`, only if its bytes exceed what its pixels and metadata explain.
    """
    fields: dict[str, Any] = {"sha256": hashlib.sha256(data).hexdigest()}
    if len(data) > config.max_bytes:
        return Outcome(fields, drop=Drop("too_many_bytes", f"more than {config.max_bytes}"))
    try:
        decoded, keeps_bytes = decode_to_store(data, config)
        original = decoded.original_width, decoded.original_height
        if keeps_bytes:
            check_sides(*original)
        image, *size = (data, *original) if keeps_bytes else store(decoded.pixels, config.resize)
    except ImageRejected as error:
        return Outcome(fields, drop=Drop(error.reason, error.detail))
    fields |= zip(("width", "height", "original_width", "original_height"), (*size, *original), strict=True)
    fields["original_format"] = decoded.original_format
    return Outcome(fields, image)


def decode_to_store(data: bytes, config: DownloadConfig) -> tuple[Decoded, bool]:
    """Decode an image; return True with it if it keeps its bytes. Raises ImageRejected.

    Without resizing, most images keep their bytes, so a JPEG is first decoded at the smallest size, which verifies it.
    """
    is_resized = config.resize.mode != "none"
    decoded = decode_reduced(data, config.limits, config.resize.size if is_resized else 1)
    width, height = decoded.original_width, decoded.original_height
    is_lean = len(data) <= PIXEL_BYTES * height * width + METADATA_BYTES
    keeps_bytes = decoded.is_plain and is_lean and keeps_size(width, height, config.resize)
    if not (keeps_bytes or is_resized) and decoded.pixels.shape[:2] != (height, width):
        decoded = decode_reduced(data, config.limits, None)
    return decoded, keeps_bytes
