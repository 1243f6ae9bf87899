"""Where to put the two thresholds: grounding score, and cosine of crop and phrase."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo.world.truth import Prediction, Truth, matches

SCORE_GRID = tuple(round(0.20 + 0.02 * step, 2) for step in range(31))
COSINE_GRID = (-1.0, *(round(0.02 * step, 2) for step in range(1, 36)))  # -1: no filter
SHOWN_SCORES, SHOWN_COSINES = (0.30, 0.40, 0.50, 0.60), (-1.0, 0.10, 0.20, 0.30, 0.40, 0.50)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One image: its truth, the boxes that are large enough, and for each the cosine of its crop and its phrase."""

    truth: Truth
    boxes: tuple[Prediction, ...]
    cosines: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Point:
    """Precision and recall of what two thresholds leave."""

    min_score: float
    min_cosine: float
    precision: float
    recall: float


def curve(images: Sequence[Scored], min_cosine: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Grounding scores of the boxes that pass `min_cosine`, highest first, and for each place how many boxes up to it are right.

    So one call serves every score threshold. Boxes are matched with the truth in the order of their scores, hence a threshold only
    cuts the end of the list off and changes no match before it.
    """
    found = []
    for image in images:
        passed = [box for box, cosine in zip(image.boxes, image.cosines, strict=True) if cosine >= min_cosine]
        found += [(box.score, right) for box, _, right in matches(passed, image.truth)]
    found.sort(key=lambda item: -item[0])
    return np.array([score for score, _ in found]), np.cumsum([right for _, right in found], dtype=np.int64)


def grid(
    images: Sequence[Scored], scores: Sequence[float] = SCORE_GRID, cosines: Sequence[float] = COSINE_GRID
) -> list[Point]:
    """Every pair of thresholds, cosine by cosine."""
    n_true = sum(len(phrase.boxes) for image in images for phrase in image.truth.phrases)
    points = []
    for min_cosine in cosines:
        falling, n_right = curve(images, min_cosine)
        for min_score in scores:
            k = int((falling >= min_score).sum())
            right = int(n_right[k - 1]) if k else 0
            points.append(
                Point(
                    min_score=min_score,
                    min_cosine=min_cosine,
                    precision=right / k if k else 0.0,
                    recall=right / n_true if n_true else 0.0,
                )
            )
    return points


def choose(groups: Mapping[str, Sequence[Scored]], min_precision: Mapping[str, float]) -> dict[str, Point]:
    """The pair of thresholds with the highest mean recall over the groups, of those precise enough in each.

    Where none is, the pair that falls short of the wanted precision by the least.
    """
    rows = list(zip(*(grid(images) for images in groups.values()), strict=True))
    wanted = [min_precision[name] for name in groups]

    def short(row: tuple[Point, ...]) -> float:
        return sum(max(w - point.precision, 0.0) for w, point in zip(wanted, row, strict=True))

    least = min(map(short, rows))
    best = max((row for row in rows if short(row) <= least), key=lambda row: sum(point.recall for point in row))
    return dict(zip(groups, best, strict=True))


def grid_table(images: Sequence[Scored]) -> list[str]:
    """Markdown: precision / recall, a row for each grounding score and a column for each cosine."""
    points = {(p.min_score, p.min_cosine): p for p in grid(images, SHOWN_SCORES, SHOWN_COSINES)}
    heads = ["no CLIP filter" if cosine < 0 else f"cosine >= {cosine:.2f}" for cosine in SHOWN_COSINES]
    lines = [f"| grounding score | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for score in SHOWN_SCORES:
        cells = [f"{points[score, c].precision:.3f} / {points[score, c].recall:.3f}" for c in SHOWN_COSINES]
        lines.append(f"| >= {score:.2f} | {' | '.join(cells)} |")
    return lines
