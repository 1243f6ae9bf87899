"""The curves of a calibration as a table and as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from common.errors import UserError
from common.plots import COLORS, axes
from common.text import one_line
from pipeline.quality.curve import Point

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
        raise UserError(f"--plot is {path}; give a file that ends with .png")
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} of --plot does not exist; create it, or give another file")


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
        raise UserError(f"{path} cannot be written: {one_line(error)}; give another file with --plot") from error
