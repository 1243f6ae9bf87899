"""Random changes of cropped images: mirror images, colours, greyscale. The operations are torchvision's."""

import random
from typing import Final

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from common.images import Image
from trainer.data.config import AugmentConfig

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
