"""Average precision of detections, as COCO defines it, for boxes of all sizes and any number of detections per image.

A detection matches the box of its class and image with the largest intersection over union (IoU) that no detection of a
higher score matches. Precision at a recall is the largest precision at this or a higher recall; the average precision
is its mean over 101 recalls. COCO's code orders equal scores arbitrarily; here, they are one step of the curve, as if
wrong detections came first.

Shapes: m detections, g true boxes, c classes, t thresholds. Boxes are left, top, width, height.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

THRESHOLDS: Final = np.linspace(0.5, 0.95, 10)
RECALLS: Final = np.linspace(0, 1, 101)
SLACK: Final = 1e-10  # COCO's code requires an IoU of at most 1 - 1e-10


@dataclass(frozen=True, kw_only=True)
class TrueBoxes:
    """Image [g], box [g 4], class [g] and crowd mask [g] of the true boxes.

    Detections that match only a crowd are neither right nor wrong.
    """

    image: Ints
    box: Floats
    label: Ints
    crowd: Bools


def iou(detections: Floats, boxes: Floats, crowd: Bools) -> Floats:
    """IoU [m g] of detections [m 4] with boxes [g 4]; for crowds, the share of the detection that they cover."""
    low = np.maximum(detections[:, None, :2], boxes[None, :, :2])
    high = np.minimum((detections[:, :2] + detections[:, 2:])[:, None], (boxes[:, :2] + boxes[:, 2:])[None])
    common = np.clip(high - low, 0, None).prod(-1)
    area, box_area = detections[:, 2:].prod(-1)[:, None], boxes[:, 2:].prod(-1)[None]
    union = np.where(crowd[None], area, area + box_area - common)
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def match(overlap: Floats, crowd: Bools) -> tuple[Bools, Bools]:
    """Masks [t m] of right and of ignored detections, from the IoU [m g] of detections in descending order of score."""
    right, ignored = np.zeros((2, len(THRESHOLDS), len(overlap)), bool)
    near = overlap >= THRESHOLDS[0]
    candidates = np.flatnonzero(near.any(1))
    if near.sum(0).max(initial=0) <= 1 and near.sum(1).max(initial=0) <= 1:  # no detection competes for a box
        boxes = near[candidates].argmax(1)
        reached = overlap[candidates, boxes] >= np.minimum(THRESHOLDS, 1 - SLACK)[:, None]
        right[:, candidates], ignored[:, candidates] = reached & ~crowd[boxes], reached & crowd[boxes]
        return right, ignored
    for t, threshold in enumerate(np.minimum(THRESHOLDS, 1 - SLACK)):
        free = ~crowd
        for row in candidates:
            allowed = np.flatnonzero(free & (overlap[row] >= threshold))
            if len(allowed):
                values = overlap[row, allowed]
                free[allowed[len(values) - 1 - values[::-1].argmax()]] = False  # the last one of equal IoU, as COCO
                right[t, row] = True
            elif (crowd & (overlap[row] >= threshold)).any():
                ignored[t, row] = True
    return right, ignored


def interpolated_precision(scores: Floats, right: Bools, n_boxes: int) -> float:
    """Mean of the interpolated precision over 101 recalls, from detections in descending order of score."""
    hits = right.cumsum()
    last = np.append(scores[1:] != scores[:-1], True)[: len(scores)]
    recall, precision = (hits / n_boxes)[last], (hits / np.arange(1, len(hits) + 1))[last]
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall, RECALLS, side="left")
    return float(np.append(envelope, 0.0)[at].mean())


def average_precisions(image: Ints, box: Floats, scores: Floats, true: TrueBoxes) -> Floats:
    """Average precision [c t] of detections in each class and at each threshold of the IoU; NaN without true boxes.

    Detection i lies in image `image[i]` at `box[i]`, and has the scores `scores` [m c]; a score of -inf means that the
    detection is not made for this class.
    """
    found = np.full((scores.shape[1], len(THRESHOLDS)), np.nan)
    by_image = np.argsort(image, kind="stable")
    sorted_images = image[by_image]
    for label in range(scores.shape[1]):
        of_class = np.flatnonzero(true.label == label)
        n_boxes = int((~true.crowd[of_class]).sum())
        if not n_boxes:
            continue
        made = np.isfinite(scores[:, label])
        right, ignored = np.zeros((2, len(THRESHOLDS), len(image)), bool)
        order = of_class[np.argsort(true.image[of_class], kind="stable")]
        for boxes in np.split(order, np.flatnonzero(np.diff(true.image[order])) + 1):
            key = true.image[boxes[0]]
            rows = by_image[slice(*np.searchsorted(sorted_images, [key, key + 1]))]
            rows = rows[made[rows]]
            rows = rows[np.argsort(-scores[rows, label], kind="stable")]
            crowd = true.crowd[boxes]
            right[:, rows], ignored[:, rows] = match(iou(box[rows], true.box[boxes], crowd), crowd)
        ranked = np.flatnonzero(made)[np.argsort(-scores[made, label], kind="stable")]
        for t in range(len(THRESHOLDS)):
            kept = ranked[~ignored[t, ranked]]
            found[label, t] = interpolated_precision(scores[kept, label], right[t, kept], n_boxes)
    return found
