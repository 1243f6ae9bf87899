"""Resize images to the input size of a model. Values are in [0, 1]; the models normalise them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.central import central_part
from hypergrit_common.config import check_positive


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
    """Preprocessing of images. "squash" resizes both sides to `size_px`; "crop" resizes the shorter side, then crops."""

    size_px: int = 224
    mode: Literal["squash", "crop"] = "crop"

    def __post_init__(self) -> None:
        check_positive(self, "size_px")


def resize_tensor(image: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 [3 h w] to uint8 [3 height width], equal to torchvision's `resize(..., BICUBIC, antialias=True)`."""
    return F.interpolate(image[None], (height, width), mode="bicubic", antialias=True)[0]


def preprocess(image: NDArray[np.uint8], config: PreprocessConfig) -> Tensor:
    """Resize and crop an RGB image, uint8 [h w 3], to float32 [3 size size] in [0, 1]."""
    return to_pixels(fit(image, config))


def fit(image: NDArray[np.uint8], config: PreprocessConfig) -> Tensor:
    """Resize and crop an RGB image, uint8 [h w 3], to uint8 [3 size size]."""
    size = config.size_px
    if config.mode == "crop":
        image = central_part(image, size, size)
    tensor = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    if config.mode == "squash":
        return resize_tensor(tensor, size, size)
    height, width = tensor.shape[1:]
    shorter = min(height, width)
    height, width = size * height // shorter, size * width // shorter
    top, left = round((height - size) / 2), round((width - size) / 2)  # as torchvision's CenterCrop
    return resize_tensor(tensor, height, width)[:, top : top + size, left : left + size].contiguous()


def to_pixels(images: Tensor) -> Tensor:
    """Convert uint8 images of any shape to float32 in [0, 1]."""
    return images.to(torch.float32) / 255
