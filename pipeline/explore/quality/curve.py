"""Precision and recall of boxes at each threshold, as numbers, as a table and as a picture."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hypergrit_common.errors import UserError
from hypergrit_common.plots import COLORS, axes
from hypergrit_common.text import one_line
from pipeline.explore.quality.boxes import FoundBox, FoundRow
from pipeline.explore.quality.known import KnownObject, refers
from pipeline.images import area, iou, overlap

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


# The curves as a table and as a picture.

SHOWN_CLIP: Final = (0.25, 0.5, 0.75, 1.0)
"""Thresholds of the CLIPScore with a curve of their own."""


def table(title: str, column: str, points: Sequence[Point], recall_name: str) -> str:
    """Return one line for each threshold that keeps other boxes than the next one, with 95 % intervals."""
    lines = [title, f"  {column:>9}  {'boxes':>7}  {'precision':>9}  {'95 % interval':15}  {recall_name}"]
    for point in distinct(points):
        threshold = point.min_score if column == "score" else point.min_clip_score
        low, high = point.precision_interval
        interval = f"[{low:.3f}, {high:.3f}]"
        text = f"{threshold:.2f}" if threshold == round(threshold, 2) else f"{threshold:g}"
        lines.append(f"  {text:>9}  {point.n_kept:7}  {point.precision:9.3f}  {interval:15}  {point.recall:.3f}")
    return "\n".join(lines) + "\n"


def distinct(points: Sequence[Point]) -> list[Point]:
    """Return the points that keep boxes, and not the same ones as a higher threshold."""
    following = [*[point.n_kept for point in points[1:]], 0]
    return [point for point, n_next in zip(points, following, strict=True) if point.n_kept != n_next]


def check_plot(path: Path) -> None:
    """Raise UserError unless a PNG file can be written to `path`; called before the work."""
    if path.suffix.lower() != ".png" or path.is_dir():
        raise UserError(f"plot is {path}; give a file that ends with .png")
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} of plot= does not exist; create it, or give another file")


def draw(
    curves: Mapping[float, Sequence[Point]], best: Point | None, precision: float, recall_name: str, path: Path
) -> None:
    """Draw precision against recall, one curve for each of some thresholds of the CLIPScore.

    Raises UserError if the file cannot be written or matplotlib is missing.
    """
    lowest = min(curves)
    try:
        with axes(path, 6.4, 4.4) as ax:
            others = [clip for clip in SHOWN_CLIP if clip > lowest and clip in curves]
            shown = [clip for clip in (lowest, *others) if any(point.n_kept for point in curves[clip])]
            for color, clip in zip(COLORS, shown, strict=False):
                points = [point for point in curves[clip] if point.n_kept]
                label = f"CLIPScore ≥ {clip:g}" if clip else "without CLIP"
                ax.plot(
                    [p.recall for p in points],
                    [p.precision for p in points],
                    "o-",
                    ms=3,
                    color=color,
                    label=label,
                    lw=2 if clip == lowest else 1,
                )
            for point in distinct(curves[lowest]):
                if point.min_score == round(point.min_score, 1):
                    at = (point.recall, point.precision)
                    ax.annotate(f"{point.min_score:.1f}", at, (4, 4), textcoords="offset points", fontsize=7)
            ax.axhline(precision, color="gray", lw=0.8, ls="--")
            if best:
                label = f"score ≥ {best.min_score:g}, CLIPScore ≥ {best.min_clip_score:g}"
                ax.plot(best.recall, best.precision, "*", ms=14, color="black", label=label)
            ax.set(xlabel=recall_name, ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.02))
            ax.grid(alpha=0.25)
            ax.legend(frameon=False, fontsize=8, loc="lower left")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {one_line(error)}; give another file with plot=") from error
