"""Precision and recall of the boxes of a finished output at each threshold, to choose the thresholds of a job.

The known boxes come from one of two sources:

  --known FILE   COCO's JSON (images, annotations, categories), whose images are found by the rows' `id`, or by the file
                 name in the URL, with or without extension (a name of several images finds none); or phrases with
                 boxes, {"ROW ID": {"caption": "a dog", "phrases": [{"start": 0, "end": 5, "boxes": [[0.1, 0.2, 0.5,
                 0.9]]}]}}, with boxes in fractions of width and height (the demo's truth.json)
  --marks FILE   the marks of people, from `python -m pipeline.audit`; the recall is then that among the marked boxes

Boxes that the job removed by a threshold are in arrow/ too, but those below its score.min_score have no CLIPScore, and
marks speak only about the boxes from which the sample was drawn. The command names the thresholds that are measured. To
see lower ones, run the job on a few thousand rows with score.min_score=0.1 score.min_clip_score=0.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from common.cli import EXIT_CODES, argument_parser, command
from common.config_help import print_text
from common.errors import UserError
from pipeline.quality.boxes import read_rows
from pipeline.quality.covered import Covered, common_sample, covered
from pipeline.quality.curve import Judged, Point, judge, n_expected, recommended, score_points
from pipeline.quality.known_files import read_known, read_synonyms
from pipeline.quality.marks import judged, marked_boxes, read_marks
from pipeline.quality.tables import check_plot, draw, table

EXAMPLES = """\
examples:
  python -m pipeline.calibrate out/demo --known out/demo_input/truth.json
  python -m pipeline.calibrate out/coco --known instances_val2017.json --synonyms synonyms.json --precision 0.95
  python -m pipeline.calibrate out/web --marks audit.csv

"""


@command()
def main() -> int:
    """Run the command and return its exit code."""
    parser = argument_parser("python -m pipeline.calibrate", __doc__, EXAMPLES + EXIT_CODES)
    parser.add_argument("output", help="output folder or URL of the job; it needs arrow/ files")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--known", type=Path, metavar="FILE", help="known boxes: COCO's JSON, or phrases with boxes")
    source.add_argument("--marks", type=Path, metavar="FILE", help="marks of people: the CSV of pipeline.audit")
    parser.add_argument(
        "--synonyms", type=Path, metavar="FILE", help='further names of COCO\'s categories: {"person": ["man", "girl"]}'
    )
    parser.add_argument("--any-phrase", action="store_true", help="compare boxes only, not phrases with categories")
    parser.add_argument("--precision", type=float, default=0.9, help="precision to reach (default: %(default)s)")
    parser.add_argument(
        "--plot", type=Path, default=Path("calibration.png"), help="file of the curve (default: %(default)s)"
    )
    options = parser.parse_args()
    if not 0 < options.precision <= 1:
        raise UserError(f"--precision is {options.precision}; give a number above 0 and at most 1")
    check_plot(options.plot)
    judges, limits = marked(options.output, options.marks) if options.marks else known(options)
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
    draw(curves, best, options.precision, recall_name, options.plot)
    print_text(f"curve: {options.plot}")
    return 0


Judges = Callable[[float], tuple[Sequence[Judged], int]]
"""Minimum CLIPScore -> the boxes that reach it, judged, and the number of boxes to be found."""


def known(options: argparse.Namespace) -> tuple[Judges, Covered]:
    """Compare the output with known boxes. Raises UserError if they have no image in common."""
    synonyms = read_synonyms(options.synonyms) if options.synonyms else {}
    source = read_known(options.known, synonyms, any_phrase=options.any_phrase)
    if unknown := sorted(synonyms.keys() - source.categories):
        print_text(f"warning: {options.synonyms}: no category of {options.known} is named {', '.join(unknown)[:200]}")
    for warning in source.warnings():
        print_text(f"warning: {warning}")
    pairs = [(row, found) for _, row in read_rows(options.output) if (found := source.of(row)) is not None]
    n_true = sum(n_expected(row, objects) for row, objects in pairs)
    if not n_true:
        raise UserError(
            f"no row of {options.output} has known objects in {options.known} ({len(source.images)} names); "
            "rows are found by their `id` or by the file name in their URL, and COCO's objects by their category in "
            "the caption (see --synonyms and --any-phrase)"
        )
    print_text(f"{len(pairs)} rows with known objects, {n_true} objects to be found")

    def judges(clip: float) -> tuple[Sequence[Judged], int]:
        return [box for row, objects in pairs for box in judge(row, objects, clip)], n_true

    return judges, covered(options.output)


def marked(output: str, path: Path) -> tuple[Judges, Covered]:
    """Use the marks of people."""
    found = marked_boxes(output, path, read_marks(path))
    boxes = [judged(mark, box) for mark, _, box in found]
    n_right = sum(box.is_right for box in boxes)
    print_text(f"{len(boxes)} marked boxes, {n_right} of them right")
    limits = covered(output, common_sample([mark.sample for mark, _, _ in found], [box.score for box in boxes]))

    def judges(clip: float) -> tuple[Sequence[Judged], int]:
        return [b for b in boxes if not clip or (b.clip_score is not None and b.clip_score >= clip)], n_right

    return judges, limits


def advice(best: Point | None, precision: float, recall_name: str) -> str:
    """Return the thresholds with the highest recall at the wanted precision, as settings of the pipeline."""
    if best is None:
        return f"No thresholds reach a precision of {precision:.2f}; lower --precision or use better models."
    low, high = best.precision_interval
    return (
        f"Highest recall at a precision of {precision:.2f}: score.min_score={best.min_score:g} "
        f"score.min_clip_score={best.min_clip_score:g}\n"
        f"  precision {best.precision:.3f} [{low:.3f}, {high:.3f}], {recall_name} {best.recall:.3f}, {best.n_kept} boxes"
    )


if __name__ == "__main__":
    sys.exit(main())
