"""The verb `quality`: how good the boxes of a finished output are, and which thresholds to choose.

Boxes that the job removed by a threshold are in arrow/ too, but those below its score.min_score have no CLIPScore, and
marks speak only about boxes like the marked ones. The command names the thresholds that are measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypergrit_common.cli import EXIT_CODES
from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError
from hypergrit_common.text import counted
from pipeline.commands.frame import output_command
from pipeline.explore.marks import marked_boxes
from pipeline.explore.quality.boxes import Covered, covered, read_rows
from pipeline.explore.quality.curve import (
    Judged,
    Point,
    check_plot,
    draw,
    judge,
    n_expected,
    recommended,
    score_points,
    table,
    wilson,
)
from pipeline.explore.quality.known import read_known

USAGE: Final = f"""\
usage: hypergrit quality OUT known=FILE [key=value ...]
       hypergrit quality OUT marks=FILE [key=value ...]

Measures the boxes of a finished output: against known boxes, or by the marks of people. It prints precision and recall
at each threshold, draws their curve, and names the thresholds with the highest recall at a precision.

  hypergrit quality out/demo known=out/demo_input/truth.json           known boxes: phrases with boxes, or COCO's JSON
  hypergrit quality out/coco known=instances_val2017.json precision=0.95
  hypergrit explore out/web                                            mark boxes with r, w and u: explore.csv
  hypergrit quality out/web marks=explore.csv                          what the marks say

  OUT                  output folder or URL of a job; it needs arrow/

To see lower thresholds than the job's, run it on a few thousand rows with score.min_score=0.1 score.min_clip_score=0.

{EXIT_CODES}
"""


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """The options of quality."""

    # known boxes: COCO's JSON (images, annotations, categories), whose images are found by the rows' `id`, or by the
    # file name in the URL; or phrases with boxes, {"ROW ID": {"caption": "a dog", "phrases": [{"start": 0, "end": 5,
    # "boxes": [[0.1, 0.2, 0.5, 0.9]]}]}}, with boxes in fractions of width and height
    known: str | None = None
    # compare boxes with known ones whatever their phrase
    any_phrase: bool = False
    # the marks of people: the CSV of `hypergrit explore`
    marks: str | None = None
    # precision that the recommended thresholds reach
    precision: float = 0.9
    # file of the curve; null: none
    plot: str | None = "calibration.png"

    def __post_init__(self) -> None:
        if (self.known is None) == (self.marks is None):
            raise UserError("give one of known=FILE and marks=FILE; `hypergrit explore OUT` writes marks")
        if not 0 < self.precision <= 1:
            raise UserError(f"precision is {self.precision}; give a number above 0 and at most 1")


def quality(output: str, options: QualityOptions) -> int:
    """Print precision and recall at each threshold, and draw the curve; return the exit code."""
    plot = None if options.plot is None else Path(options.plot)
    if plot:
        check_plot(plot)
    judges, limits = known(output, options) if options.marks is None else marked(output, Path(options.marks))
    print_text(limits.describe() + "\n")
    curves = {clip: score_points(*judges(clip), clip, limits.scores(clip)) for clip in limits.clip_scores()}
    best = recommended([p for points in curves.values() for p in points], options.precision)
    recall_name, lowest = "right boxes kept" if options.marks else "recall", min(curves)
    condition = f"with score.min_clip_score={lowest:g}" if lowest else "without a threshold of the CLIPScore"
    print_text(table(f"Grounding score, {condition}:", "score", curves[lowest], recall_name))
    min_score = max(best.min_score if best else 0.0, limits.min_score_with_clip)
    by_clip = [point for points in curves.values() for point in points if point.min_score == min_score]
    print_text(table(f"CLIPScore, with score.min_score={min_score:g}:", "CLIPScore", by_clip, recall_name))
    print_text(advice(best, options.precision, recall_name))
    if plot:
        draw(curves, best, options.precision, recall_name, plot)
        print_text(f"curve: {plot}")
    return 0


Judges = Callable[[float], tuple[Sequence[Judged], int]]
"""Minimum CLIPScore -> the boxes that reach it, judged, and the number of boxes to be found."""


def known(output: str, options: QualityOptions) -> tuple[Judges, Covered]:
    """Compare the output with known boxes. Raises UserError if they have no image in common."""
    source = read_known(Path(options.known or ""), any_phrase=options.any_phrase)
    pairs = [(row, found) for row in read_rows(output) if (found := source.of(row)) is not None]
    n_true = sum(n_expected(row, objects) for row, objects in pairs)
    if not n_true:
        raise UserError(
            f"no row of {output} has known objects in {options.known} ({len(source.ids)} images); rows are found by "
            "their `id` or by the file name in their URL, and COCO's objects by their category in the caption (see "
            "any_phrase)"
        )
    print_text(f"{counted(len(pairs), 'row')} with known objects, {counted(n_true, 'object')} to be found")

    def judges(clip: float) -> tuple[Sequence[Judged], int]:
        return [box for row, objects in pairs for box in judge(row, objects, clip)], n_true

    return judges, covered(output)


def marked(output: str, path: Path) -> tuple[Judges, Covered]:
    """Use the marks of people."""
    found = [(box.removed is None, Judged(score=box.score, clip_score=box.clip_score, is_right=is_right))
             for _, box, is_right in marked_boxes(output, path)]  # fmt: skip
    for title, is_wanted in (("kept boxes", True), ("removed boxes", False)):
        if boxes := [box for is_kept, box in found if is_kept is is_wanted]:
            print_text(precision_line(title, boxes))
    boxes = [box for _, box in found]
    n_right = sum(box.is_right for box in boxes)

    def judges(clip: float) -> tuple[Sequence[Judged], int]:
        return [b for b in boxes if not clip or (b.clip_score is not None and b.clip_score >= clip)], n_right

    return judges, covered(output, min(box.score for box in boxes))


def precision_line(title: str, boxes: Sequence[Judged]) -> str:
    """Return the precision of marked boxes with its 95 % interval."""
    n_right = sum(box.is_right for box in boxes)
    low, high = wilson(n_right, len(boxes))
    return f"{title:13} precision {n_right / len(boxes):.3f} [{low:.3f}, {high:.3f}], {n_right} of {len(boxes)} right"


def advice(best: Point | None, precision: float, recall_name: str) -> str:
    """Return the thresholds with the highest recall at the wanted precision, as settings of the pipeline."""
    if best is None:
        return f"No thresholds reach a precision of {precision:.2f}; lower precision or use better models."
    low, high = best.precision_interval
    return (
        f"Highest recall at a precision of {precision:.2f}: score.min_score={best.min_score:g} "
        f"score.min_clip_score={best.min_clip_score:g}\n"
        f"  precision {best.precision:.3f} [{low:.3f}, {high:.3f}], {recall_name} {best.recall:.3f}, {counted(best.n_kept, 'box', 'boxes')}"
    )


main = output_command(USAGE, "hypergrit quality OUT", QualityOptions, quality)
"""Measure the quality of boxes: thresholds against known boxes, or by marks."""
