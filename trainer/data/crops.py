"""Random crops of JPEGs: decoded no larger than needed, cut out and resized in one step, written where they belong.

torchvision's RandomResizedCrop draws the same regions. The pixels differ a little from those it makes of them (levels
of 255 in the mean and at most, as the tests measure them):

    0.4, 12   enlarged: OpenCV's bicubic kernel (a = -0.75) for Pillow's (a = -0.5)
    0.03, 2   shrunk: torch's anti-aliased bicubic kernel, which is Pillow's up to rounding
    0.4, 21   shrunk from a half, a quarter or an eighth of the size, which libjpeg decodes without the frequencies that
              cannot be shown. The region's corners are moved to whole pixels there, half a pixel of the output at
              most, which is not in these figures
"""

import math
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

import cv2
import numpy as np
import torch

from common.images import Image, ImageLimits, ImageRejected, check_header, decode
from trainer.data.preprocess import resize

WHITE: Final = 255
REDUCED: Final = {
    1: cv2.IMREAD_COLOR_RGB,
    2: cv2.IMREAD_COLOR_RGB | 16,  # OpenCV's bits for 1/2, 1/4, 1/8; its named flags are for BGR
    4: cv2.IMREAD_COLOR_RGB | 32,
    8: cv2.IMREAD_COLOR_RGB | 64,
}
JPEG_START: Final = b"\xff\xd8\xff"
JPEG_END: Final = b"\xff\xd9"
START_OF_FRAME: Final = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive
START_OF_SCAN: Final = 0xDA
APP1: Final = 0xE1
TRIES: Final = 10

LIMITS: Final = ImageLimits(max_pixels=100_000_000, max_aspect_ratio=math.inf)


class Region(NamedTuple):
    """A rectangle in whole pixels."""

    x: int
    y: int
    width: int
    height: int


class Cut(NamedTuple):
    """What to show where: `source` in pixels of the whole-resolution image, `target` in those of the output."""

    source: Region
    target: Region


def draw_region(
    generator: random.Random, width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Region:
    """A random part of an image: torchvision's RandomResizedCrop.get_params.

    Area uniform in `scale`, logarithm of the ratio of its sides uniform in `ratio`; ten tries to fit, then the largest
    part in the middle with a ratio in range.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        area = width * height * generator.uniform(*scale)
        aspect = math.exp(generator.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return Region(generator.randint(0, width - w), generator.randint(0, height - h), w, h)
    w = min(width, max(1, round(height * ratio[1])))
    h = min(height, max(1, round(width / ratio[0])))
    return Region((width - w) // 2, (height - h) // 2, w, h)


def draw_cut(
    generator: random.Random,
    on_square: bool,
    size_px: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    content: Region,
) -> Cut | None:
    """A random crop of `content`, a part of an image; `on_square`: laid in the middle of a white square first.

    None: the crop shows white alone.
    """
    x, y, width, height = content
    if not on_square or width == height:
        drawn = draw_region(generator, width, height, scale, ratio)
        return Cut(Region(x + drawn.x, y + drawn.y, drawn.width, drawn.height), Region(0, 0, size_px, size_px))
    side = max(width, height)
    drawn = draw_region(generator, side, side, scale, ratio)
    columns = overlap(drawn.x - (side - width) // 2, drawn.width, width, size_px)
    rows = overlap(drawn.y - (side - height) // 2, drawn.height, height, size_px)
    if columns is None or rows is None:
        return None
    return Cut(
        Region(x + columns[0], y + rows[0], columns[1], rows[1]), Region(columns[2], rows[2], columns[3], rows[3])
    )


def overlap(start: int, length: int, content: int, size_px: int) -> tuple[int, int, int, int] | None:
    """Along one axis: what [start, start + length), shown in `size_px` pixels, has of [0, content).

    First pixel and number of pixels of the content, then of the output. None: nothing, or less than half a pixel.
    """
    first, last = max(start, 0), min(start + length, content)
    if first >= last:
        return None
    target_first = round((first - start) * size_px / length)
    target_last = round((last - start) * size_px / length)
    if target_first == target_last:
        return None
    return first, last - first, target_first, target_last - target_first


def reduction(cuts: Sequence[Cut]) -> int:
    """The largest of 8, 4, 2, 1 to divide an image's sides by so that no cut has to be enlarged for it."""
    factor = min(min(cut.source.width / cut.target.width, cut.source.height / cut.target.height) for cut in cuts)
    return next((step for step in (8, 4, 2) if factor >= step), 1)


def reduced(region: Region, factor: int) -> Region:
    """The region in pixels of the image decoded at 1 / factor, corners rounded."""
    left, top = round(region.x / factor), round(region.y / factor)
    right, bottom = round((region.x + region.width) / factor), round((region.y + region.height) / factor)
    return Region(left, top, right - left, bottom - top)


def show(image: Image, factor: int, cut: Cut, out: Image) -> None:
    """Write `cut` of an image, decoded at 1 / `factor`, to `out` [size size 3], which is white where it is not."""
    x, y, width, height = target = cut.target
    if (width, height) != out.shape[1::-1]:
        out[:] = WHITE
    place = out[y : y + height, x : x + width]
    left, top, columns, rows = reduced(cut.source, factor)
    part = image[top : top + rows, left : left + columns]
    if part.shape[0] > target.height or part.shape[1] > target.width:
        pixels = torch.from_numpy(part).permute(2, 0, 1)
        place[:] = resize(pixels, height, width).permute(1, 2, 0).numpy()
    else:
        cv2.resize(part, (width, height), dst=place, interpolation=cv2.INTER_CUBIC)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG that can be decoded as it is; None: not a whole JPEG, or one with an orientation or
    in CMYK."""
    if not data.startswith(JPEG_START) or not data.endswith(JPEG_END):
        return None
    at, end = 2, len(data)
    while at + 10 <= end and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in START_OF_FRAME:
            height, width = int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
            return (width, height) if data[at + 9] in (1, 3) and width and height else None
        if marker == START_OF_SCAN or (marker == APP1 and data[at + 4 : at + 8] == b"Exif"):
            return None
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


class Picture:
    """An encoded image; its pixels are decoded when they are asked for. Raises ImageRejected for what is none."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        size = jpeg_size(data)
        self.is_plain = size is not None
        self.pixels: Image | None = None
        if size is None:
            self.pixels = decode(data, LIMITS)
            size = self.pixels.shape[1], self.pixels.shape[0]
        self.width, self.height = size
        check_header(self.width, self.height, LIMITS)

    @property
    def whole(self) -> Region:
        return Region(0, 0, self.width, self.height)

    def decode(self, factor: int) -> Image:
        """The upright RGB pixels at 1 / factor, sides rounded up."""
        if self.pixels is not None:
            return self.pixels
        pixels = cv2.imdecode(np.frombuffer(self.data, np.uint8), REDUCED[factor])
        if pixels is None or pixels.shape[:2] != (-(-self.height // factor), -(-self.width // factor)):
            raise ImageRejected("undecodable", "broken JPEG")
        return np.asarray(pixels, np.uint8)

    def write(self, cuts: Sequence[Cut | None], outs: Sequence[Image]) -> None:
        """Decode once, for all the cuts, and write each to its output."""
        shown = [cut for cut in cuts if cut is not None]
        factor = reduction(shown) if shown and self.is_plain else 1
        image = self.decode(factor)
        for cut, out in zip(cuts, outs, strict=True):
            if cut is None:
                out[:] = WHITE
            else:
                show(image, factor, cut, out)
