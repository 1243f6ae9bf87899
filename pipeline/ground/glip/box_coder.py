"""Boxes as offsets from anchors. Sides count inclusive pixels ("+1"): w = x2 - x1 + 1, while centres are plain."""

import math

import torch
from torch import Tensor

from pipeline.ground.glip.anchors import centers

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
MAX_LOG_RATIO = math.log(1000.0 / 16.0)


def decode(deltas: Tensor, anchors: Tensor) -> Tensor:
    """xyxy boxes of deltas [..., 4], float32."""
    deltas = deltas.float() / deltas.new_tensor(WEIGHTS, dtype=torch.float32)
    sides = anchors[..., 2:] - anchors[..., :2] + 1
    center = deltas[..., :2] * sides + centers(anchors)
    half = (deltas[..., 2:].clamp(max=MAX_LOG_RATIO).exp() * sides - 1) / 2
    return torch.cat([center - half, center + half], dim=-1)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """The inverse of `decode`."""
    sides = anchors[..., 2:] - anchors[..., :2] + 1
    shift = (centers(boxes) - centers(anchors)) / sides
    ratio = ((boxes[..., 2:] - boxes[..., :2] + 1) / sides).log()
    return torch.cat([shift, ratio], dim=-1) * boxes.new_tensor(WEIGHTS)


def inclusive_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU [n, m] of boxes [n, 4] and [m, 4] with inclusive sides."""
    top_left = torch.maximum(a[:, None, :2], b[:, :2])
    bottom_right = torch.minimum(a[:, None, 2:], b[:, 2:])
    overlap = (bottom_right - top_left + 1).clamp(min=0).prod(dim=2)
    return overlap / (inclusive_area(a)[:, None] + inclusive_area(b) - overlap)


def inclusive_area(boxes: Tensor) -> Tensor:
    """Areas [n] with inclusive sides."""
    return (boxes[:, 2:] - boxes[:, :2] + 1).prod(dim=1)
