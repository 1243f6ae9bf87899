"""Let people judge a sample of the boxes of a finished output, and compute the precision from their marks.

  1. python -m pipeline.audit OUTPUT                    writes audit.html and audit.csv
  2. Open audit.html in a browser and mark each box with the buttons or the keys R (right), W (wrong), U (unsure); then
     download the CSV. Or write right, wrong or unsure into the column `mark` of audit.csv.
  3. python -m pipeline.audit OUTPUT --marks audit.csv  prints the precision with its interval, by score

A box is right if it encloses what its phrase names, and IoU 0.5 with the best box is enough. The sample is random, so
the precision holds for all boxes it was drawn from, which step 3 names: the kept ones, and with --min-score those of at
least this score. 200 marks give an interval of about +-4 % at 0.9. For thresholds, sample with
--of all --min-score 0.3 (lower scores are nearly always wrong and cost marks), and pass the marks to `python -m
pipeline.calibrate OUTPUT --marks audit.csv`.
"""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from common.cli import argument_parser, command
from common.config_help import print_text
from common.disk import atomic_write
from common.errors import UserError
from common.text import one_line
from pipeline.quality.covered import Sample
from pipeline.quality.curve import Judged, wilson
from pipeline.quality.marks import judged, marked_boxes, read_marks, write_form
from pipeline.quality.page import render
from pipeline.quality.sample import choose

BINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
CLIP_BINS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.51)


@command()
def main() -> int:
    """Run the command and return its exit code."""
    parser = argument_parser("python -m pipeline.audit", __doc__)
    parser.add_argument("output", help="output folder or URL of the job; it needs arrow/ files and images")
    parser.add_argument("--boxes", type=int, default=200, help="number of boxes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: %(default)s)")
    parser.add_argument(
        "--of",
        choices=("kept", "all"),
        default="kept",
        help="sample kept boxes, or also those that a threshold of the scores removed (default: %(default)s)",
    )
    parser.add_argument(
        "--min-score", type=float, default=0.0, help="sample boxes of at least this score (default: %(default)s)"
    )
    parser.add_argument("--page", type=Path, default=Path("audit.html"), help="page to write (default: %(default)s)")
    parser.add_argument("--form", type=Path, default=Path("audit.csv"), help="CSV to write (default: %(default)s)")
    parser.add_argument("--marks", type=Path, metavar="FILE", help="read the marks of this CSV instead of sampling")
    options = parser.parse_args()
    if options.marks:
        found = marked_boxes(options.output, options.marks, read_marks(options.marks))
        kept = [box.removed is None for _, _, box in found]
        boxes = [judged(mark, box) for mark, _, box in found]
        print_text(about([mark.sample for mark, _, _ in found]))
        print_text(summary(boxes, kept))
        return 0
    if options.boxes < 1:
        raise UserError(f"--boxes is {options.boxes}; give 1 or more")
    if not 0 <= options.min_score <= 1:
        raise UserError(f"--min-score is {options.min_score}; give a number from 0 to 1")
    if options.page.resolve() == options.form.resolve():
        raise UserError(f"--page and --form are both {options.form}; give two files")
    questions = choose(options.output, options.boxes, options.seed, options.of, options.min_score)
    form = write_form(question.candidate for question in questions)
    if options.form.is_file() and options.form.read_bytes() != form.encode():
        raise UserError(f"{options.form} exists and may hold marks; remove it, or give another file with --form")
    write_both(options.page, render(questions, options.output), options.form, form)
    if options.of == "all" and not questions[0].candidate.sample.of_all:
        print_text(
            "warning: images of dropped rows are not stored, so their boxes are missing, and the marks speak only about "
            "thresholds from those of the job on; for lower ones, run it with score.min_score=0.1 score.min_clip_score=0"
        )
    print_text(
        f"{len(questions)} boxes: mark them in {options.page}, or in the column `mark` of {options.form}; then run\n"
        f"  python -m pipeline.audit {options.output} --marks {options.form}"
    )
    return 0


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
        texts.append("unnamed, of a form before version 0.5, or chosen by hand in the explorer")
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


if __name__ == "__main__":
    sys.exit(main())
