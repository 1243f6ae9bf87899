"""Random crops of encoded images: decode at the lowest sufficient resolution, then crop and resize in one step.

Regions have the same distribution as those of torchvision's RandomResizedCrop. Pixels differ slightly from
torchvision's. The mean and the maximum of the difference, on a scale of 255, for the images of the tests:

    0.4, 12   enlarged: OpenCV's bicubic kernel (a = -0.75) instead of Pillow's (a = -0.5)
    0.03, 2   shrunk: torch's anti-aliased bicubic kernel, which equals Pillow's up to rounding
    0.4, 21   shrunk from an image decoded at 1/2, 1/4 or 1/8 of its size: libjpeg omits the frequencies above the
              reduced resolution. The corners of the region are also rounded to pixels of the decoded image, which moves
              them by at most half a pixel of the output; these figures exclude that shift.
"""

import math
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

import cv2
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from hypergrit_common.image_codec import REDUCTIONS
from hypergrit_common.images import Image
from hypergrit_common.samples import EncodedImage, Region
from trainer.data.config import AugmentConfig
from trainer.data.preprocess import resize_tensor

WHITE: Final = 255
MAX_DRAWS: Final = 10  # attempts to draw a region that fits the image, as in torchvision


class Crop(NamedTuple):
    """A region of the full-resolution image, and the region of the output image that shows it."""

    source: Region
    target: Region


class Overlap(NamedTuple):
    """The visible part of an image along one axis: first pixel and number of pixels, in the image and in the output."""

    source_start: int
    source_length: int
    target_start: int
    target_length: int


def draw_region(
    generator: random.Random, width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Region:
    """Draw a random region of an image, as torchvision's RandomResizedCrop.get_params does.

    The area is uniform in `scale`, a share of the image's area, and the logarithm of width / height is uniform in
    `ratio`. If ten draws do not fit the image, the result is its largest central region with a ratio in range.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(MAX_DRAWS):
        area = width * height * generator.uniform(*scale)
        aspect = math.exp(generator.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return Region(generator.randint(0, width - w), generator.randint(0, height - h), w, h)
    w = min(width, max(1, round(height * ratio[1])))
    h = min(height, max(1, round(width / ratio[0])))
    return Region((width - w) // 2, (height - h) // 2, w, h)


def draw_crop(
    generator: random.Random,
    pad_to_square: bool,
    size_px: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    region: Region,
) -> Crop | None:
    """Draw a random crop of a region of an image, for a square output of side `size_px`.

    `pad_to_square` first centres the region on a white square. Returns None if the crop shows only padding.
    """
    x, y, width, height = region
    if not pad_to_square or width == height:
        drawn = draw_region(generator, width, height, scale, ratio)
        return Crop(Region(x + drawn.x, y + drawn.y, drawn.width, drawn.height), Region(0, 0, size_px, size_px))
    side = max(width, height)
    drawn = draw_region(generator, side, side, scale, ratio)
    columns = overlap(drawn.x - (side - width) // 2, drawn.width, width, size_px)
    rows = overlap(drawn.y - (side - height) // 2, drawn.height, height, size_px)
    if columns is None or rows is None:
        return None
    return Crop(
        Region(x + columns.source_start, y + rows.source_start, columns.source_length, rows.source_length),
        Region(columns.target_start, rows.target_start, columns.target_length, rows.target_length),
    )


def overlap(start: int, length: int, content: int, size_px: int) -> Overlap | None:
    """Return the overlap of an image [0, content) and a crop [start, start + length) along one axis.

    The crop is resized to `size_px` pixels. Returns None if there is no overlap, or if it rounds to 0 output pixels.
    """
    first, last = max(start, 0), min(start + length, content)
    if first >= last:
        return None
    target_first = round((first - start) * size_px / length)
    target_last = round((last - start) * size_px / length)
    if target_first == target_last:
        return None
    return Overlap(first, last - first, target_first, target_last - target_first)


def reduction_factor(crops: Sequence[Crop]) -> int:
    """Return the largest reduction, 8, 4 or 2, after which no crop has to be enlarged; 1 if all are too large."""
    factor = min(min(crop.source.width / crop.target.width, crop.source.height / crop.target.height) for crop in crops)
    return max((step for step in REDUCTIONS if factor >= step), default=1)


def reduce_region(region: Region, factor: int) -> Region:
    """Convert a region to pixels of the image decoded at 1 / factor, with its corners rounded to whole pixels."""
    left, top = round(region.x / factor), round(region.y / factor)
    right, bottom = round((region.x + region.width) / factor), round((region.y + region.height) / factor)
    return Region(left, top, right - left, bottom - top)


def render_crop(image: Image, factor: int, crop: Crop, out: Image) -> None:
    """Write a crop of `image`, decoded at 1 / factor, to `out` [size size 3]. The rest of `out` becomes white."""
    x, y, width, height = crop.target
    if (width, height) != out.shape[1::-1]:
        out[:] = WHITE
    target = out[y : y + height, x : x + width]
    left, top, columns, rows = reduce_region(crop.source, factor)
    source = image[top : top + rows, left : left + columns]
    if source.shape[0] > height or source.shape[1] > width:
        pixels = torch.from_numpy(source).permute(2, 0, 1)
        target[:] = resize_tensor(pixels, height, width).permute(1, 2, 0).numpy()
    else:
        cv2.resize(source, (width, height), dst=target, interpolation=cv2.INTER_CUBIC)


def write_crops(encoded: EncodedImage, crops: Sequence[Crop | None], outs: Sequence[Image]) -> None:
    """Decode an image once and write each crop to its output [size size 3]; None becomes a white output.

    Raises ImageRejected if the image is damaged.
    """
    visible = [crop for crop in crops if crop is not None]
    factor = reduction_factor(visible) if visible and encoded.header is not None else 1
    image = encoded.decode(factor)
    for crop, out in zip(crops, outs, strict=True):
        if crop is None:
            out[:] = WHITE
        else:
            render_crop(image, factor, crop, out)


# Random changes of cropped images: mirror images, colours, greyscale. The operations are torchvision's.

JITTERS: Final = (
    ("brightness", F.adjust_brightness_image),
    ("contrast", F.adjust_contrast_image),
    ("saturation", F.adjust_saturation_image),
)


def augment(image: Image, config: AugmentConfig, generator: random.Random) -> None:
    """Change a crop [s s 3] in place, as the probabilities of `config` say: flip, colour jitter, then greyscale."""
    pixels = before = torch.from_numpy(image).permute(2, 0, 1)
    if generator.random() < config.flip:
        pixels = F.horizontal_flip_image(pixels)
    if generator.random() < config.jitter:
        pixels = jitter(pixels, config, generator)
    if generator.random() < config.greyscale:
        pixels = F.rgb_to_grayscale_image(pixels, num_output_channels=3)
    if pixels is not before:
        image[:] = pixels.permute(1, 2, 0).numpy()


def jitter(pixels: Tensor, config: AugmentConfig, generator: random.Random) -> Tensor:
    """Change the colours of an image [3 s s] in random order, with the distribution of torchvision's ColorJitter."""
    steps = [
        (function, generator.uniform(1 - most, 1 + most))
        for name, function in JITTERS
        if (most := getattr(config, name))
    ]
    if config.hue:
        steps.append((F.adjust_hue_image, generator.uniform(-config.hue, config.hue)))
    generator.shuffle(steps)
    for function, factor in steps:
        pixels = function(pixels, factor)
    return pixels
