"""Images as GLIP's network reads them: BGR, normalised, resized by the short side, padded to a common size."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.images import Image
from pipeline.ground.glip.config import DetectConfig

MEAN_BGR = (103.530, 116.280, 123.675)
STD_BGR = (57.375, 57.120, 58.395)
DIVISOR = 32  # the coarsest stride of the image tower


def network_size(height: int, width: int, config: DetectConfig) -> tuple[int, int]:
    """Height and width after resizing: the short side as configured, unless the long side would pass its limit."""
    short, long = min(height, width), max(height, width)
    target = config.short_side_px
    if long / short * target > config.max_side_px:
        target = max(round(config.max_side_px * short / long), 1)
    scaled = min(int(target * long / short), config.max_side_px)  # a strip of a few pixels cannot keep its shape
    return (target, scaled) if height <= width else (scaled, target)


def padded_size(size: tuple[int, int]) -> tuple[int, int]:
    """Height and width rounded up to the divisor."""
    return -(-size[0] // DIVISOR) * DIVISOR, -(-size[1] // DIVISOR) * DIVISOR


def resize(image: Image, size: tuple[int, int]) -> Image:
    """The image at (height, width), averaged over the pixels that it loses, as PIL's bilinear filter does."""
    if image.shape[:2] == size:
        return image
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    out = torch.nn.functional.interpolate(pixels, size=size, mode="bilinear", antialias=True, align_corners=False)
    return out[0].permute(1, 2, 0).numpy()


def batch_images(images: Sequence[Image]) -> Tensor:
    """Bytes [b, 3, h, w], BGR, as large as the largest image needs, for `normalise`."""
    height, width = padded_size((max(image.shape[0] for image in images), max(image.shape[1] for image in images)))
    batch = torch.zeros(len(images), 3, height, width, dtype=torch.uint8)
    for row, image in zip(batch, images, strict=True):
        for channel, plane in enumerate(row):
            plane[: image.shape[0], : image.shape[1]] = torch.from_numpy(image[:, :, 2 - channel])
    return batch


def normalise(pixels: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
    """The bytes as float32, normalised on their own device; zero outside of each image's height and width.

    Numbers, not tensors, are subtracted: those would have to be brought to a GPU first, which waits for its work to be done.
    """
    batch = pixels.float()
    for channel, (mean, std) in enumerate(zip(MEAN_BGR, STD_BGR, strict=True)):
        batch[:, channel].sub_(mean).div_(std)
    for row, (height, width) in zip(batch, sizes, strict=True):
        row[:, height:] = 0
        row[:, :, width:] = 0
    return batch
