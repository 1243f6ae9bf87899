"""ATSS (Zhang et al., CVPR 2020): assign anchors to boxes."""

import torch
from torch import Tensor

from pipeline.ground.glip.anchors import centers
from pipeline.ground.glip.box_coder import inclusive_iou

MIN_INSIDE_PX = 0.01  # minimum distance of an anchor's centre from the sides of its box


def assign(anchors: list[Tensor], boxes: Tensor, candidates: int) -> Tensor:
    """Return the index of the box that each anchor is assigned to, or -1 for background: int64 [cells].

    `anchors` holds xyxy [h*w, 4] per level, `boxes` is xyxy [g, 4]. The candidates of a box are the `candidates`
    nearest anchors of each level. A candidate is positive if its centre is inside the box and its IoU is at least the
    mean plus the standard deviation of the IoUs of the box's candidates. An anchor that is positive for several boxes
    is assigned to the box with the largest IoU.
    """
    joined = torch.cat(anchors)
    if len(boxes) == 0:
        return joined.new_full((len(joined),), -1, dtype=torch.int64)
    iou = inclusive_iou(joined, boxes)  # [cells, g]
    center = centers(joined)
    nearest = _nearest(anchors, boxes, candidates)  # [n, g]
    near_iou = iou.gather(0, nearest)
    threshold = near_iou.mean(dim=0) + near_iou.std(dim=0)
    near_center = center[nearest]  # [n, g, 2]
    inside = torch.cat([near_center - boxes[:, :2], boxes[:, 2:] - near_center], dim=2).amin(dim=2) > MIN_INSIDE_PX
    positive_iou = torch.full_like(iou, -1.0)
    positive_iou.scatter_(0, nearest, torch.where((near_iou >= threshold) & inside, near_iou, -1.0))
    best, owner = positive_iou.max(dim=1)
    return torch.where(best >= 0, owner, -1)


def _nearest(anchors: list[Tensor], boxes: Tensor, candidates: int) -> Tensor:
    """Indices of the candidates of each box among all anchors: [n, g], where n is at most levels * candidates."""
    target = centers(boxes)
    picks: list[Tensor] = []
    start = 0
    for level in anchors:
        distance = (centers(level)[:, None] - target).square().sum(dim=2).sqrt()
        picks.append(distance.topk(min(candidates, len(level)), dim=0, largest=False).indices + start)
        start += len(level)
    return torch.cat(picks)
