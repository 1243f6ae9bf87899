"""Prepare images for GLIP: resize by the shorter side, pad to a common size, convert to BGR, normalise."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.images import Image
from pipeline.ground.glip.config import DetectConfig

MEAN_BGR = (103.530, 116.280, 123.675)  # of ImageNet, for values from 0 to 255
STD_BGR = (57.375, 57.120, 58.395)
DIVISOR = 32  # padded heights and widths are multiples of it: the coarsest stride of the image tower

Size = tuple[int, int]
"""Height and width, in pixels."""


def network_size(height: int, width: int, config: DetectConfig) -> Size:
    """Size after resizing: the shorter side is `short_side_px`, or less if the longer would exceed `max_side_px`."""
    short, long = min(height, width), max(height, width)
    target = config.short_side_px
    if long / short * target > config.max_side_px:
        target = max(round(config.max_side_px * short / long), 1)
    # The aspect ratio is not preserved if the shorter side shrinks to one pixel.
    scaled = min(int(target * long / short), config.max_side_px)
    return (target, scaled) if height <= width else (scaled, target)


def padded_size(size: Size) -> Size:
    """Height and width, rounded up to multiples of 32."""
    return -(-size[0] // DIVISOR) * DIVISOR, -(-size[1] // DIVISOR) * DIVISOR


def resize_bilinear(image: Image, size: Size) -> Image:
    """Resize to (height, width) with antialiasing, as PIL's bilinear filter does."""
    if image.shape[:2] == size:
        return image
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    out = torch.nn.functional.interpolate(pixels, size=size, mode="bilinear", antialias=True, align_corners=False)
    return out[0].permute(1, 2, 0).numpy()


def batch_images(images: Sequence[Image]) -> Tensor:
    """Stack RGB images into uint8 [b, 3, h, w], BGR, zero-padded at the right and bottom to a common padded size."""
    height, width = padded_size((max(image.shape[0] for image in images), max(image.shape[1] for image in images)))
    batch = torch.zeros(len(images), 3, height, width, dtype=torch.uint8)
    for row, image in zip(batch, images, strict=True):
        for channel, plane in enumerate(row):
            plane[: image.shape[0], : image.shape[1]] = torch.from_numpy(image[:, :, 2 - channel])
    return batch


def normalise(pixels: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Normalise the result of `batch_images` to float32, and set the padding of each image to 0."""
    batch = pixels.float()
    # The means are Python numbers, because copying a tensor of means to a GPU would synchronize with it.
    for channel, (mean, std) in enumerate(zip(MEAN_BGR, STD_BGR, strict=True)):
        batch[:, channel].sub_(mean).div_(std)
    for row, (height, width) in zip(batch, sizes, strict=True):
        row[:, height:] = 0
        row[:, :, width:] = 0
    return batch
