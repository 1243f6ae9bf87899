"""Anchors: one square box per cell of each feature map, in inclusive pixel coordinates."""

import torch
from torch import Tensor

from pipeline.ground.glip.config import AnchorConfig


def level_anchors(size: tuple[int, int], stride: int, side_in_strides: float, device: torch.device) -> Tensor:
    """Anchors of one level: xyxy [h*w, 4], row-major. The centre of the first one is at (stride - 1) / 2 in x and y."""
    rows = torch.arange(size[0], device=device, dtype=torch.float32) * stride + (stride - 1) / 2
    columns = torch.arange(size[1], device=device, dtype=torch.float32) * stride + (stride - 1) / 2
    half = (side_in_strides * stride - 1) / 2
    y, x = (axis.flatten() for axis in torch.meshgrid(rows, columns, indexing="ij"))
    return torch.stack([x - half, y - half, x + half, y + half], dim=1)


def pyramid_anchors(sizes: list[tuple[int, int]], config: AnchorConfig, device: torch.device) -> list[Tensor]:
    """Anchors of every level, fine to coarse; `sizes` holds the height and width of each feature map."""
    return [
        level_anchors(size, stride, config.size, device) for size, stride in zip(sizes, config.strides, strict=True)
    ]


def centers(boxes: Tensor) -> Tensor:
    """Centres [..., 2] of xyxy boxes."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2
