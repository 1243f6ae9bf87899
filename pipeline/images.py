"""Resizing, cropping and encoding of decoded images. An image is uint8 RGB [h, w, 3]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import cv2
import numpy as np

from common.config import check_range
from common.images import Image

ResizeMode = Literal["keep_ratio", "border", "none"]

MAX_SIDE_PX: Final = 65_500
"""Longest side that libjpeg can encode."""


@dataclass(frozen=True, kw_only=True)
class ResizeConfig:
    """The size at which an image is stored."""

    # keep_ratio: the shorter side becomes `size`; border: fit into a white square of side `size`; none: keep the size
    mode: ResizeMode = "keep_ratio"
    # shorter side of the stored image, or side of the square, in pixels
    size: int = 256
    # let keep_ratio also enlarge images whose shorter side is below `size`
    enlarge: bool = False
    # JPEG quality of the stored image, 1 to 100
    jpeg_quality: int = 95

    def __post_init__(self) -> None:
        check_range(self, "jpeg_quality", least=1, most=100)
        check_range(self, "size", least=1, most=MAX_SIDE_PX)


def resize(image: Image, height: int, width: int) -> Image:
    """Resize an image to `height` x `width` pixels: bicubic with antialiasing, with torch's fast uint8 kernel."""
    # torch takes seconds to import, and callers that only crop and encode do not need it.
    import torch
    from torch.nn.functional import interpolate

    if image.shape[:2] == (height, width):
        return image
    pixels = torch.from_numpy(image if image.flags.writeable else image.copy())[None].permute(0, 3, 1, 2)
    out = interpolate(pixels, size=(height, width), mode="bicubic", antialias=True)
    return out[0].permute(1, 2, 0).contiguous().numpy()


def resize_as(image: Image, config: ResizeConfig) -> Image:
    """Resize an image for storage, as `config` specifies."""
    match config.mode:
        case "none":
            return image
        case "border":
            return border_square(image, config.size)
        case "keep_ratio":
            if keeps_size(image.shape[1], image.shape[0], config):
                return image
            short = min(image.shape[:2])
            height, width = (max(1, round(side * config.size / short)) for side in image.shape[:2])
            return resize(image, height, width)


def keeps_size(width: int, height: int, config: ResizeConfig) -> bool:
    """Return True if an image of this size is stored at its own size."""
    match config.mode:
        case "none":
            return True
        case "border":
            return width == height == config.size
        case "keep_ratio":
            short = min(width, height)
            return short == config.size or (short < config.size and not config.enlarge)


def encode_jpeg(image: Image, quality: int = 95) -> bytes:
    """Encode an image as JPEG, 4:2:0, without metadata: equal pixels give equal bytes.

    Raises ValueError if a side is longer than `MAX_SIDE_PX`.
    """
    is_encoded, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not is_encoded:
        raise ValueError(f"an image of shape {image.shape} cannot be encoded as JPEG")
    return data.tobytes()


def corners(box: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """The corners (x_min, y_min, x_max, y_max) of a schemas.rows.BOX or GIVEN_BOX."""
    return box["x_min"], box["y_min"], box["x_max"], box["y_max"]


def crop_box(image: Image, xyxy: Sequence[float]) -> Image:
    """Cut out a box, given in fractions of width and height; corners are truncated to whole pixels, as in HyCoCLIP.

    Returns a view; it is empty if the truncated box contains no pixel.
    """
    height, width = image.shape[:2]
    x_min, y_min, x_max, y_max = (min(max(value, 0.0), 1.0) for value in xyxy)
    return image[int(y_min * height) : int(y_max * height), int(x_min * width) : int(x_max * width)]


def border_square(image: Image, size: int = 224) -> Image:
    """Fit an image into a white square of side `size`, centred, as in the training data of HyCoCLIP.

    It is shrunk with OpenCV's area interpolation and enlarged with its Lanczos interpolation.
    """
    long = max(image.shape[:2])
    height, width = (max(1, round(side * size / long)) for side in image.shape[:2])
    if long != size:
        method = cv2.INTER_AREA if size < long else cv2.INTER_LANCZOS4
        image = np.asarray(cv2.resize(image, (width, height), interpolation=method), np.uint8)
    square = np.full((size, size, 3), 255, np.uint8)
    top, left = (size - height) // 2, (size - width) // 2
    square[top : top + height, left : left + width] = image
    return square
