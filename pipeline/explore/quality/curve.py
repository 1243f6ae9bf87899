"""Precision and recall of boxes at each threshold."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.explore.quality.boxes import FoundBox, FoundRow, area, iou, overlap
from pipeline.explore.quality.known import KnownObject, refers

MIN_IOU: Final = 0.5
Z: Final = 1.959964
"""Quantile of the normal distribution for intervals of 95 %."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A box with its scores, and True if it is right."""

    score: float
    clip_score: float | None
    is_right: bool


@dataclass(frozen=True, kw_only=True)
class Point:
    """Two thresholds, and the boxes that reach both. `n_true` is the number of boxes to be found."""

    min_score: float
    min_clip_score: float
    n_kept: int
    n_right: int
    n_true: int

    @property
    def precision(self) -> float:
        return self.n_right / self.n_kept if self.n_kept else math.nan

    @property
    def recall(self) -> float:
        return self.n_right / self.n_true if self.n_true else math.nan

    @property
    def precision_interval(self) -> tuple[float, float]:
        return wilson(self.n_right, self.n_kept)


def wilson(n_right: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of n trials (Wilson 1927); (0, 1) without trials."""
    if not n:
        return 0.0, 1.0
    share, z2 = n_right / n, Z * Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def passes(box: FoundBox, min_clip_score: float) -> bool:
    """True if a box is large enough and reaches a CLIPScore; 0 keeps boxes that CLIP did not see."""
    if box.removed == "box_too_small":
        return False
    return not min_clip_score or (box.clip_score is not None and box.clip_score >= min_clip_score)


def judge(row: FoundRow, known: Sequence[KnownObject], min_clip_score: float = 0.0) -> list[Judged]:
    """Compare the boxes of a row that reach a CLIPScore with its known objects.

    In descending order of their scores, boxes are matched one to one with the objects that their phrases refer to. A box
    is right if the IoU is at least 0.5. Boxes that lie in a crowd by half and are not right are left out.
    """
    found, left = [], [known_object for known_object in known if not known_object.is_crowd]
    crowds = [known_object.corners for known_object in known if known_object.is_crowd]
    for box in sorted((b for b in row.boxes if passes(b, min_clip_score)), key=lambda b: -b.score):
        fitting = [(iou(box.corners, item.corners), item) for item in left if refers(row, (box.start, box.end), item)]
        best_iou, best = max(fitting, key=lambda pair: pair[0], default=(0.0, None))
        is_right = best is not None and best_iou >= MIN_IOU
        if is_right and best is not None:
            left.remove(best)
        elif any(overlap(box.corners, crowd) >= MIN_IOU * area(box.corners) > 0 for crowd in crowds):
            continue
        found.append(Judged(score=box.score, clip_score=box.clip_score, is_right=is_right))
    return found


def n_expected(row: FoundRow, known: Sequence[KnownObject]) -> int:
    """Return the number of objects to be found: those with a span, and those whose name the caption mentions."""
    whole = (0, len(row.caption))
    return sum(not item.is_crowd and (item.span is not None or refers(row, whole, item)) for item in known)


def score_points(judged: Sequence[Judged], n_true: int, min_clip_score: float, scores: Iterable[float]) -> list[Point]:
    """Return a point for each threshold of the grounding score. `judged` reach `min_clip_score`."""
    points = []
    for threshold in scores:
        lowest = float(np.float32(threshold))  # scores are stored as float32
        kept = [box for box in judged if box.score >= lowest]
        points.append(
            Point(
                min_score=threshold,
                min_clip_score=min_clip_score,
                n_kept=len(kept),
                n_right=sum(box.is_right for box in kept),
                n_true=n_true,
            )
        )
    return points


def recommended(points: Iterable[Point], min_precision: float) -> Point | None:
    """Return the point with the highest recall among those of at least this precision, or None.

    Of several, the one with the most precision is returned; of several that keep the same boxes, the one with the
    highest thresholds.
    """
    enough = [point for point in points if point.n_kept and point.precision >= min_precision]
    return max(enough, key=rank, default=None)


def rank(point: Point) -> tuple[float, ...]:
    return point.n_right, point.precision, point.min_score, point.min_clip_score
