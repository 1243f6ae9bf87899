"""Choose the thresholds of the grounding score and of the cosine between crop and phrase."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo.world.truth import Prediction, Truth, matches

SCORE_GRID = tuple(round(0.20 + 0.02 * step, 2) for step in range(31))
COSINE_GRID = (-1.0, *(round(0.02 * step, 2) for step in range(1, 36)))  # -1: no filter
# Rows and columns of `grid_table`.
SHOWN_SCORES, SHOWN_COSINES = (0.30, 0.40, 0.50, 0.60), (-1.0, 0.10, 0.20, 0.30, 0.40, 0.50)


@dataclass(frozen=True, kw_only=True)
class ScoredImage:
    """The ground truth of one image, its predicted boxes of sufficient size, and the cosine of each box's crop and phrase."""

    truth: Truth
    boxes: tuple[Prediction, ...]
    cosines: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Two thresholds, and precision and recall of the boxes that pass both."""

    min_score: float
    min_cosine: float
    precision: float
    recall: float


def score_curve(images: Sequence[ScoredImage], min_cosine: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the descending scores of the boxes that pass `min_cosine`, and the cumulative number of correct boxes.

    One call serves all score thresholds: boxes are matched in descending order of their scores, so a threshold only
    removes the end of the list and changes no earlier match.
    """
    found = []
    for image in images:
        passed = [box for box, cosine in zip(image.boxes, image.cosines, strict=True) if cosine >= min_cosine]
        found += [(match.prediction.score, match.is_correct) for match in matches(passed, image.truth)]
    found.sort(key=lambda item: -item[0])
    scores, correct = [score for score, _ in found], [is_correct for _, is_correct in found]
    return np.array(scores), np.cumsum(correct, dtype=np.int64)


def grid(
    images: Sequence[ScoredImage], scores: Sequence[float] = SCORE_GRID, cosines: Sequence[float] = COSINE_GRID
) -> list[OperatingPoint]:
    """Return the operating points of all pairs of thresholds, ordered by cosine and then by score."""
    n_true = sum(len(phrase.boxes) for image in images for phrase in image.truth.phrases)
    points = []
    for min_cosine in cosines:
        descending, n_correct = score_curve(images, min_cosine)
        for min_score in scores:
            k = int((descending >= min_score).sum())
            correct = int(n_correct[k - 1]) if k else 0
            points.append(
                OperatingPoint(
                    min_score=min_score,
                    min_cosine=min_cosine,
                    precision=correct / k if k else 0.0,
                    recall=correct / n_true if n_true else 0.0,
                )
            )
    return points


def choose_thresholds(
    groups: Mapping[str, Sequence[ScoredImage]], min_precision: Mapping[str, float]
) -> dict[str, OperatingPoint]:
    """Choose one pair of thresholds for all groups. Returns its operating point in each group.

    Of the pairs that reach the minimum precision in every group, the pair with the highest mean recall is chosen. If
    there is none, only the pairs with the smallest total shortfall of precision are considered.
    """
    candidates = list(zip(*(grid(images) for images in groups.values()), strict=True))
    required = [min_precision[name] for name in groups]

    def shortfall(points: tuple[OperatingPoint, ...]) -> float:
        return sum(max(p - point.precision, 0.0) for p, point in zip(required, points, strict=True))

    least = min(map(shortfall, candidates))
    best = max(
        (points for points in candidates if shortfall(points) <= least),
        key=lambda points: sum(point.recall for point in points),
    )
    return dict(zip(groups, best, strict=True))


def grid_table(images: Sequence[ScoredImage]) -> list[str]:
    """Return a Markdown table of precision / recall, with a row per grounding score and a column per cosine."""
    points = {(p.min_score, p.min_cosine): p for p in grid(images, SHOWN_SCORES, SHOWN_COSINES)}
    heads = ["no CLIP filter" if cosine < 0 else f"cosine >= {cosine:.2f}" for cosine in SHOWN_COSINES]
    lines = [f"| grounding score | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for score in SHOWN_SCORES:
        cells = [f"{points[score, c].precision:.3f} / {points[score, c].recall:.3f}" for c in SHOWN_COSINES]
        lines.append(f"| >= {score:.2f} | {' | '.join(cells)} |")
    return lines
