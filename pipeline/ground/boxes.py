"""Select the boxes of a row from the detections of a network, or read them from the input."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torchvision.ops import nms

from pipeline.ground.grounder import Box, Detection
from pipeline.images import corners

Boxes = list[dict[str, Any]]
"""Boxes of one row (schemas.rows.BOX), best first."""


def select(detections: Sequence[Detection], floor: float, nms_iou: float) -> list[Detection]:
    """Return the detections that score at least `floor`, best first, after non-maximum suppression across all phrases.

    A box suppresses only boxes with lower scores. Applying a higher score threshold to the result therefore gives the
    same boxes as a higher `floor`.
    """
    good = sorted((d for d in detections if d.score >= floor), key=lambda d: (-d.score, d.phrase, d.box))
    if not good:
        return []
    boxes, scores = torch.tensor([d.box for d in good]), torch.tensor([d.score for d in good])
    return [good[i] for i in sorted(nms(boxes, scores, nms_iou).tolist())]


def given_boxes(row: Mapping[str, Any]) -> Boxes:
    """Return the given boxes of a PARSED row, best first; omit those whose phrase is not in the cleaned caption."""
    pairs = zip(row["given_chunks"], row["given_noun_chunks"], strict=True)
    boxes = [box_struct(chunk, corners(given), given["score"]) for chunk, given in pairs if chunk >= 0]
    return sorted(boxes, key=lambda box: -box["score"])


def box_struct(phrase: int, box: Box, score: float) -> dict[str, Any]:
    """Return a box in the form of schemas.rows.BOX, with its corners clipped to the image."""
    named = zip(("x_min", "y_min", "x_max", "y_max"), box, strict=True)
    return {"phrase": phrase, **{name: min(max(value, 0.0), 1.0) for name, value in named}, "score": score}
