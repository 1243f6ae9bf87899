"""Images as GLIP's network reads them: BGR, normalised, resized by the short side, padded to a common size."""

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


def batch_images(images: list[Image]) -> Tensor:
    """float32 [b, 3, h, w], as large as the largest needs; zeros right and below, after the normalisation."""
    height, width = padded_size((max(image.shape[0] for image in images), max(image.shape[1] for image in images)))
    batch = torch.zeros(len(images), 3, height, width)
    mean, std = torch.tensor(MEAN_BGR).view(3, 1, 1), torch.tensor(STD_BGR).view(3, 1, 1)
    for row, image in zip(batch, images, strict=True):
        part = row[:, : image.shape[0], : image.shape[1]]
        for channel, plane in enumerate(part):  # RGB to BGR
            plane.copy_(torch.from_numpy(image[:, :, 2 - channel]))
        part.sub_(mean).div_(std)
    return batch
