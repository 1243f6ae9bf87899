"""The verb `quality`: how good the boxes of a finished output are, and which thresholds to choose.

Boxes that the job removed by a threshold are in arrow/ too, but those below its score.min_score have no CLIPScore, and
marks speak only about the boxes from which the sample was drawn. The command names the thresholds that are measured.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hypergrit_common.cli import EXIT_CODES
from hypergrit_common.config_help import print_text
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.text import counted, one_line
from pipeline.commands.frame import output_command
from pipeline.explore.quality.boxes import Covered, Sample, common_sample, covered, read_rows
from pipeline.explore.quality.curve import Judged, Point, judge, n_expected, recommended, score_points, wilson
from pipeline.explore.quality.known import read_known, read_synonyms
from pipeline.explore.quality.marks import (
    check_plot,
    choose,
    draw,
    judged,
    marked_boxes,
    read_marks,
    render,
    table,
    write_form,
)
from pipeline.output.store import check_outside_outputs

USAGE: Final = f"""\
usage: hypergrit quality OUT [known=FILE | marks=FILE] [key=value ...]

Measures the boxes of a finished output: against known boxes, or by people who mark a sample. It prints precision and
recall at each threshold, draws their curve, and names the thresholds with the highest recall at a precision.

  hypergrit quality out/demo known=out/demo_input/truth.json           known boxes: phrases with boxes, or COCO's JSON
  hypergrit quality out/coco known=instances_val2017.json synonyms=synonyms.json precision=0.95
  hypergrit quality out/web                                           draw 200 kept boxes: audit.html, audit.csv
  hypergrit quality out/web boxes=400 of=all min_score=0.2            also boxes that a threshold removed
  hypergrit quality out/web marks=audit.csv                           what the marks say

  OUT                  output folder or URL of a job; it needs arrow/, and images for a sample

To see lower thresholds than the job's, run it on a few thousand rows with score.min_score=0.1 score.min_clip_score=0.

{EXIT_CODES}
"""

BINS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
CLIP_BINS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.51)


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """The options of quality."""

    # known boxes: COCO's JSON (images, annotations, categories), whose images are found by the rows' `id`, or by the
    # file name in the URL; or phrases with boxes, {"ROW ID": {"caption": "a dog", "phrases": [{"start": 0, "end": 5,
    # "boxes": [[0.1, 0.2, 0.5, 0.9]]}]}}, with boxes in fractions of width and height
    known: str | None = None
    # further names of COCO's categories: a JSON file such as {"person": ["man", "girl"]}
    synonyms: str | None = None
    # compare boxes with known ones whatever their phrase
    any_phrase: bool = False
    # the marks of people: the CSV that was written with the sample, or by the explorer
    marks: str | None = None
    # precision that the recommended thresholds reach
    precision: float = 0.9
    # file of the curve; null: none
    plot: str | None = "calibration.png"
    # number of boxes of a sample to mark
    boxes: int = 200
    # seed of the sample
    seed: int = 0
    # what is sampled: kept boxes, or all: also those that a threshold of the scores removed
    of: Literal["kept", "all"] = "kept"
    # sample boxes of at least this grounding score
    min_score: float = 0.0
    # page of the sample, for marking in a browser
    page: str = "audit.html"
    # CSV of the sample, for marking in a spreadsheet
    form: str = "audit.csv"

    def __post_init__(self) -> None:
        if self.known is not None and self.marks is not None:
            raise UserError("known and marks are both given; give one")
        if not 0 < self.precision <= 1:
            raise UserError(f"precision is {self.precision}; give a number above 0 and at most 1")
        if self.boxes < 1:
            raise UserError(f"boxes is {self.boxes}; give 1 or more")
        if not 0 <= self.min_score <= 1:
            raise UserError(f"min_score is {self.min_score}; give a number from 0 to 1")
        if Path(self.page).resolve() == Path(self.form).resolve():
            raise UserError(f"page and form are both {self.form}; give two files")


def quality(output: str, options: QualityOptions) -> int:
    """Draw a sample, or measure the boxes; return the exit code."""
    if options.known is None and options.marks is None:
        draw_sample(output, options)
    else:
        calibrate(output, options)
    return 0


def draw_sample(output: str, options: QualityOptions) -> None:
    """Write the page and the form of a sample of boxes to mark."""
    page, path = Path(options.page), Path(options.form)
    check_outside_outputs(page=options.page, form=options.form)
    questions = choose(output, options.boxes, options.seed, options.of, options.min_score)
    form = write_form(question.candidate for question in questions)
    if path.is_file() and path.read_bytes() != form.encode():
        raise UserError(f"{path} exists and may hold marks; remove it, or give another file with form=")
    write_both(page, render(questions, output), path, form)
    if options.of == "all" and not questions[0].candidate.sample.of_all:
        print_text(
            "warning: images of dropped rows are not stored, so their boxes are missing, and the marks speak only about "
            "thresholds from those of the job on; for lower ones, run it with score.min_score=0.1 score.min_clip_score=0"
        )
    print_text(
        f"{counted(len(questions), 'box', 'boxes')} to mark in {page}, or in the column `mark` of {path}; then run\n"
        f"  hypergrit quality {output} marks={path}"
    )


def calibrate(output: str, options: QualityOptions) -> None:
    """Print precision and recall at each threshold, from known boxes or marks, and draw the curve."""
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


Judges = Callable[[float], tuple[Sequence[Judged], int]]
"""Minimum CLIPScore -> the boxes that reach it, judged, and the number of boxes to be found."""


def known(output: str, options: QualityOptions) -> tuple[Judges, Covered]:
    """Compare the output with known boxes. Raises UserError if they have no image in common."""
    synonyms = read_synonyms(Path(options.synonyms)) if options.synonyms else {}
    source = read_known(Path(options.known or ""), synonyms, any_phrase=options.any_phrase)
    if unknown := sorted(synonyms.keys() - source.categories):
        print_text(f"warning: {options.synonyms}: no category of {options.known} is named {', '.join(unknown)[:200]}")
    for warning in source.warnings():
        print_text(f"warning: {warning}")
    pairs = [(row, found) for _, row in read_rows(output) if (found := source.of(row)) is not None]
    n_true = sum(n_expected(row, objects) for row, objects in pairs)
    if not n_true:
        raise UserError(
            f"no row of {output} has known objects in {options.known} ({len(source.images)} names); "
            "rows are found by their `id` or by the file name in their URL, and COCO's objects by their category in "
            "the caption (see synonyms and any_phrase)"
        )
    print_text(f"{counted(len(pairs), 'row')} with known objects, {counted(n_true, 'object')} to be found")

    def judges(clip: float) -> tuple[Sequence[Judged], int]:
        return [box for row, objects in pairs for box in judge(row, objects, clip)], n_true

    return judges, covered(output)


def marked(output: str, path: Path) -> tuple[Judges, Covered]:
    """Use the marks of people."""
    found = marked_boxes(output, path, read_marks(path))
    boxes = [judged(mark, box) for mark, _, box in found]
    kept = [box.removed is None for _, _, box in found]
    n_right = sum(box.is_right for box in boxes)
    print_text(f"{about([mark.sample for mark, _, _ in found])}\n{summary(boxes, kept)}\n")
    print_text(f"{counted(len(boxes), 'marked box', 'marked boxes')}, {n_right} right")
    limits = covered(output, common_sample([mark.sample for mark, _, _ in found], [box.score for box in boxes]))

    def judges(clip: float) -> tuple[Sequence[Judged], int]:
        return [b for b in boxes if not clip or (b.clip_score is not None and b.clip_score >= clip)], n_right

    return judges, limits


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


def write_both(page: Path, html: str, form: Path, csv: str) -> None:
    """Write the page and the form. Raises UserError if one of them cannot be written; then neither is."""
    path = page
    try:
        with atomic_write(page) as page_draft:
            page_draft.write_text(html, encoding="utf-8")
            path = form
            with atomic_write(form) as form_draft:
                form_draft.write_text(csv, encoding="utf-8")
            path = page
    except OSError as error:
        raise UserError(f"{path} cannot be written: {one_line(error)}; give another file") from error


def about(samples: Sequence[Sample | None]) -> str:
    """Return the boxes that the precision of marks is about, as one line: those from which they were drawn."""
    distinct = sorted({sample for sample in samples if sample}, key=lambda sample: (sample.of_all, sample.min_score))
    texts = [
        ("kept and removed" if sample.of_all else "kept")
        + " boxes"
        + (f" with a grounding score of at least {sample.min_score:g}" if sample.min_score else "")
        for sample in distinct
    ]
    if None in samples:
        texts.append("unnamed, or chosen by hand in the explorer")
    text = f"drawn from: {'; '.join(texts)}"
    if len(texts) > 1:
        return (
            f"{text}. The precision of marks of several samples is that of no set of boxes; read their forms one by one"
        )
    if distinct and distinct[0].min_score:
        return f"{text}. The precision says nothing about boxes below"
    return text


def summary(boxes: Sequence[Judged], kept: Sequence[bool]) -> str:
    """Return the precision with its 95 % interval: of kept boxes, and by score of all marked ones."""
    lines = [line("kept boxes", [box for box, is_kept in zip(boxes, kept, strict=True) if is_kept])]
    if not all(kept):
        lines.append(line("removed boxes", [b for b, is_kept in zip(boxes, kept, strict=True) if not is_kept]))
    for title, bins, value in (
        ("grounding score", BINS, [box.score for box in boxes]),
        ("CLIPScore", CLIP_BINS, [box.clip_score for box in boxes]),
    ):
        lines.append(f"{title}:")
        for low, high in itertools.pairwise(bins):
            inside = [b for b, v in zip(boxes, value, strict=True) if v is not None and low <= v < high]
            if inside:
                lines.append(line(f"  {low:.2f} to {min(high, 2.5 if bins is CLIP_BINS else 1.0):.2f}", inside))
    return "\n".join(lines)


def line(title: str, boxes: Sequence[Judged]) -> str:
    n_right = sum(box.is_right for box in boxes)
    low, high = wilson(n_right, len(boxes))
    share = f"{n_right / len(boxes):.3f}" if boxes else "  -  "
    return f"{title:16} precision {share} [{low:.3f}, {high:.3f}], {n_right} of {len(boxes)} right"


main = output_command(USAGE, "hypergrit quality OUT", QualityOptions, quality)
