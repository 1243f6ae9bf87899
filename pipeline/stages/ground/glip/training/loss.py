"""GLIP's training loss: token focal loss, GIoU weighted by centerness, and centerness.

Axes: b images, n cells, t word pieces, g boxes of an image, k positive cells of the batch.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import generalized_box_iou_loss

from pipeline.stages.ground.glip.config import GlipConfig
from pipeline.stages.ground.glip.head import centers, decode, inclusive_iou
from pipeline.stages.ground.glip.model import GlipOutput

# ATSS (Zhang et al., CVPR 2020): assign anchors to boxes.

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


@dataclass(frozen=True, kw_only=True)
class Target:
    """The true boxes of an image, and the word pieces of their phrases."""

    boxes: Tensor  # [g, 4], inclusive xyxy in pixels of the network's input
    tokens: Tensor  # bool [g, t], true at the word pieces of the phrases of a box


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The three losses, as scalar tensors."""

    token: Tensor
    box: Tensor
    centerness: Tensor

    @property
    def total(self) -> Tensor:
        """The sum of the losses, which training minimises."""
        return self.token + self.box + self.centerness


def glip_loss(output: GlipOutput, mask: Tensor, targets: list[Target], config: GlipConfig) -> Losses:
    """Compute the three losses of a batch in float32; `mask` [b, t] is 0 for padding of the prompts."""
    anchors = torch.cat(output.anchors)
    owners = torch.stack([assign(output.anchors, target.boxes, config.loss.candidates) for target in targets])
    positive = owners >= 0
    n_positive = positive.sum().clamp(min=1)
    logits = output.token_logits.float()
    token_target = torch.stack(
        [token_targets(owner, target, config.text.max_tokens) for owner, target in zip(owners, targets, strict=True)]
    )
    token = focal_loss(logits, token_target, config.loss.focal_alpha, config.loss.focal_gamma)
    token = (token * (mask[:, None] > 0)).sum() / n_positive

    gt = torch.cat([target.boxes[owner[owner >= 0]] for owner, target in zip(owners, targets, strict=True)])
    positive_anchors = anchors.expand(len(targets), -1, -1)[positive]  # [k, 4]
    quality = centerness_target(positive_anchors, gt)
    predicted = decode(output.deltas[positive], positive_anchors)
    giou = (quality * generalized_box_iou_loss(predicted, gt, eps=1e-7)).sum()
    box = config.loss.box_weight * giou / quality.sum().clamp(min=1e-7)
    centerness = F.binary_cross_entropy_with_logits(output.centerness[positive], quality, reduction="sum") / n_positive
    return Losses(token=token, box=box, centerness=centerness)


def token_targets(owner: Tensor, target: Target, max_tokens: int) -> Tensor:
    """Targets [n, t] of the token logits of one image; `owner` [n] is the box of each cell, or -1 for background.

    As in the released code, the target of background cells is the last word piece if the padded prompts have
    `max_tokens` word pieces, and none otherwise.
    """
    t = target.tokens.shape[1]
    background = owner.new_zeros((1, t), dtype=torch.float32)
    if t == max_tokens:
        background[0, -1] = 1
    return torch.cat([target.tokens.float(), background])[owner]  # index -1 is the last row, the background


def focal_loss(logits: Tensor, target: Tensor, alpha: float, gamma: float) -> Tensor:
    """Focal loss, elementwise: alpha_t (1 - p_t)^gamma BCE (Lin et al., ICCV 2017, eq. 5)."""
    cross_entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p = logits.sigmoid()
    p_t = p * target + (1 - p) * (1 - target)
    return (alpha * target + (1 - alpha) * (1 - target)) * (1 - p_t) ** gamma * cross_entropy


def centerness_target(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Centerness [k] of anchors in their boxes (Tian et al., FCOS, ICCV 2019, eq. 3).

            sqrt(min(l, r) / max(l, r) * min(t, b) / max(t, b))

    l, r, t, b are the distances of the anchor's centre from the left, right, top and bottom side of the box.
    """
    center = centers(anchors)
    before, after = center - boxes[:, :2], boxes[:, 2:] - center
    return (torch.minimum(before, after) / torch.maximum(before, after)).prod(dim=1).clamp(min=0).sqrt()
