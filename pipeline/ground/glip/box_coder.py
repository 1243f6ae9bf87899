"""Encode boxes as offsets from anchors; compute sides and IoU of boxes with inclusive corners.

A box with inclusive corners contains its corner pixels: its width is x_max - x_min + 1, its centre (x_min + x_max) / 2.
"""

import math

import torch
from torch import Tensor

from pipeline.ground.glip.anchors import centers

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
MAX_LOG_RATIO = math.log(1000.0 / 16.0)


def decode(deltas: Tensor, anchors: Tensor) -> Tensor:
    """Convert deltas [..., 4] to boxes [..., 4]: inclusive xyxy in float32."""
    deltas = deltas.float() / deltas.new_tensor(WEIGHTS, dtype=torch.float32)
    sides = inclusive_sides(anchors)
    center = deltas[..., :2] * sides + centers(anchors)
    half = (deltas[..., 2:].clamp(max=MAX_LOG_RATIO).exp() * sides - 1) / 2
    return torch.cat([center - half, center + half], dim=-1)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Convert boxes to deltas; the inverse of `decode`."""
    sides = inclusive_sides(anchors)
    shift = (centers(boxes) - centers(anchors)) / sides
    ratio = (inclusive_sides(boxes) / sides).log()
    return torch.cat([shift, ratio], dim=-1) * boxes.new_tensor(WEIGHTS)


def inclusive_sides(boxes: Tensor) -> Tensor:
    """Width and height [..., 2] of boxes with inclusive corners."""
    return boxes[..., 2:] - boxes[..., :2] + 1


def inclusive_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU [n, m] of boxes [n, 4] and [m, 4] with inclusive corners."""
    top_left = torch.maximum(a[:, None, :2], b[:, :2])
    bottom_right = torch.minimum(a[:, None, 2:], b[:, 2:])
    overlap = (bottom_right - top_left + 1).clamp(min=0).prod(dim=2)
    return overlap / (inclusive_sides(a).prod(dim=1)[:, None] + inclusive_sides(b).prod(dim=1) - overlap)


def to_exclusive(boxes: Tensor) -> Tensor:
    """Convert inclusive boxes [..., 4] to exclusive right and bottom sides, which torchvision's functions expect."""
    return torch.cat([boxes[..., :2], boxes[..., 2:] + 1], dim=-1)


def to_inclusive(boxes: Tensor) -> Tensor:
    """Convert boxes [..., 4] with exclusive right and bottom sides to inclusive ones."""
    return torch.cat([boxes[..., :2], boxes[..., 2:] - 1], dim=-1)
