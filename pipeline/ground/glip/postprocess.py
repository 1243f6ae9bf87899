"""Select the boxes of an image from the network's predictions, as GLIP's released code does."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from pipeline.ground.glip.box_coder import decode, inclusive_sides, to_exclusive
from pipeline.ground.glip.config import DetectConfig
from pipeline.ground.glip.model import GlipOutput


@dataclass(frozen=True, kw_only=True)
class Detections:
    """Boxes of one image, best first."""

    boxes: Tensor  # [d, 4], xyxy inclusive pixels of the network's input
    scores: Tensor  # [d], sqrt(class probability * centerness)
    labels: Tensor  # [d], row index in the positive map

    def __getitem__(self, keep: Tensor) -> "Detections":
        return Detections(boxes=self.boxes[keep], scores=self.scores[keep], labels=self.labels[keep])


def class_probability(token_logits: Tensor, positive_map: Tensor) -> Tensor:
    """Mean probability [n, labels] of the word pieces of each label; positive_map is bool [labels, t]."""
    weight = positive_map.float() / positive_map.sum(dim=1, keepdim=True).clamp(min=1)
    return token_logits.float().sigmoid() @ weight.T


def detect(
    output: GlipOutput,
    index: int,
    positive_map: Tensor,
    size: tuple[int, int],
    config: DetectConfig,
    floor: float = 0.0,
) -> Detections:
    """Detections of image `index`, whose unpadded size is (width, height), with a score of at least `floor`.

    `floor` is applied before the suppression. This does not change the result, because a box never suppresses one with
    a higher score.
    """
    anchors = torch.cat(output.anchors)
    probability = class_probability(output.token_logits[index], positive_map)
    squared = probability * output.centerness[index].float().sigmoid()[:, None]
    is_candidate = (probability > config.min_class_prob) & (squared.sqrt() >= floor)
    cell, label = is_candidate.nonzero(as_tuple=True)
    squared = squared[cell, label]
    keep = best_per_level(cell, squared, [len(level) for level in output.anchors], config.top_per_level)
    cell, label, squared = cell[keep], label[keep], squared[keep]
    boxes = decode(output.deltas[index][cell], anchors[cell])
    boxes = torch.minimum(boxes.clamp(min=0), boxes.new_tensor([size[0] - 1, size[1] - 1] * 2))
    found = Detections(boxes=boxes, scores=squared.sqrt(), labels=label)
    found = found[(inclusive_sides(boxes) >= 0).all(dim=1)]
    found = found[batched_nms(to_exclusive(found.boxes), found.scores, found.labels, config.nms_iou)]
    if len(found.scores) > config.max_boxes:  # ties with the last box are kept, as in the released code
        found = found[found.scores >= found.scores[config.max_boxes - 1]]
    return found


def best_per_level(cell: Tensor, scores: Tensor, level_cells: list[int], limit: int) -> Tensor:
    """Indices of the `limit` best candidates of each level; `cell`, the cell of each candidate, must be sorted."""
    ends = torch.tensor(level_cells, device=cell.device).cumsum(0)
    counts = torch.searchsorted(cell, ends).diff(prepend=ends.new_zeros(1)).tolist()
    picks: list[Tensor] = []
    start = 0
    for count in counts:
        part = scores[start : start + count]
        best = part.topk(limit).indices if count > limit else torch.arange(count, device=cell.device)
        picks.append(best + start)
        start += count
    return torch.cat(picks)
