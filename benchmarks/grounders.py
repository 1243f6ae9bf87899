"""Compare grounders on the same marked pictures: those of a finished output whose boxes are known, or were marked by people.

    python -m benchmarks.grounders OUT --known truth.json --grounders miniature models/llmdet_tiny
    python -m benchmarks.grounders OUT --marks explore.csv --grounders iSEE-Laboratory/llmdet_tiny models/glip_t

`--known` and `--marks` are the files of `hypergrit quality`. Each grounder gets pictures, captions and phrases of the kept
rows. A box is right at IoU 0.5 with a box of its phrase. With marks, a box that is near none that was marked is left out,
and recall is that of the boxes that were marked as right. Precision and recall are those at the lowest threshold with the
precision of `--precision`, or at the best F1. Intervals are 95 % bootstrap intervals over pictures, and differences to the
first grounder use the same pictures. The last line is one JSON object.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.phrases import intervals
from hypergrit_common.errors import UserError
from pipeline.explore.marks import marked_boxes
from pipeline.explore.quality.boxes import SCORES, FoundBox, FoundRow, found_row
from pipeline.explore.quality.curve import MIN_IOU, Judged, judge, n_expected, recommended, score_points
from pipeline.explore.quality.known import KnownObject, read_known, refers
from pipeline.images import iou
from pipeline.output.ledger import read_images, read_manifests, read_rows
from pipeline.output.store import Store
from pipeline.stages.ground.grounder import PhraseDrop
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground
from schemas.rows import PARSED
from schemas.status import KEPT

FLOOR: Final = 0.05
MEASURES: Final = ("AP", "precision", "recall")
COLUMNS: Final = [name for name in PARSED.names if name != "image"]


class Answer(NamedTuple):
    """The boxes of one picture, judged, and the number to be found."""

    boxes: list[Judged]
    n_true: int


@dataclass(frozen=True)
class Truth:
    """The known boxes of an image. `wrong` are boxes that people marked as wrong; None: every true box is known."""

    right: Sequence[KnownObject]
    wrong: Sequence[KnownObject] | None = None

    def answer(self, row: FoundRow) -> Answer:
        """Judge the boxes of a row."""
        if self.wrong is not None:
            marked = [*self.right, *self.wrong]
            near = [box for box in row.boxes if any(is_near(row, box, item) for item in marked)]
            row = replace(row, boxes=tuple(near))
        return Answer(judge(row, self.right), n_expected(row, self.right))


def is_near(row: FoundRow, box: FoundBox, item: KnownObject) -> bool:
    """Return True if a box is at IoU 0.5 with one that was marked, of the same phrase."""
    return refers(row, (box.start, box.end), item) and iou(box.corners, item.corners) >= MIN_IOU


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", metavar="OUT", help="a finished output with arrow/ and images")
    parser.add_argument("--grounders", nargs="+", required=True, help="values of the setting `grounder`")
    parser.add_argument("--known", type=Path, help="known boxes: COCO's JSON, or phrases with boxes")
    parser.add_argument("--marks", type=Path, help="the CSV with the marks of people")
    parser.add_argument("--pictures", type=int, default=500, help="at most this many pictures")
    parser.add_argument("--precision", type=float, default=0.9, help="precision that the threshold reaches")
    parser.add_argument("--device", default="auto", help="as ground.device")
    options = parser.parse_args()
    truths = read_truths(options)
    table = read_pictures(options.output, truths, options.pictures)
    if not table.num_rows:
        raise UserError(
            f"no kept row of {options.output} has an image and boxes in the file; give the output's own file"
        )
    found = {name: run(name, table, truths, options.device) for name in options.grounders}
    print(json.dumps(report(found, options.precision) | {"pictures": table.num_rows}))


def read_truths(options: argparse.Namespace) -> dict[str, Truth]:
    """Return what is known of each picture, by the key of its row. Raises UserError."""
    if (options.known is None) == (options.marks is None):
        raise UserError("give one of --known and --marks")
    if options.known:
        known = read_known(options.known)
        rows = ((row, known.of(row)) for row in all_rows(options.output))
        return {row.key: Truth(objects) for row, objects in rows if objects}
    found: dict[str, tuple[list[KnownObject], list[KnownObject]]] = {}
    for row, box, is_right in marked_boxes(options.output, options.marks):
        item = KnownObject(corners=box.corners, span=(box.start, box.end))
        found.setdefault(row.key, ([], []))[not is_right].append(item)
    return {key: Truth(right, wrong) for key, (right, wrong) in found.items()}


def all_rows(output: str) -> Iterator[FoundRow]:
    """Yield the kept rows without boxes."""
    store = Store(output)
    columns, is_kept = ("key", "id", "url", "status", "caption", "noun_chunks"), pc.field("status") == KEPT
    for row in read_rows(store, read_manifests(store), columns, is_kept):
        yield found_row({**row, "boxes": [], "box_scores": []})


def read_pictures(output: str, truths: Mapping[str, Truth], most: int) -> pa.Table:
    """Return the PARSED table of the first kept rows whose boxes are known; given boxes do not take part."""
    store, rows = Store(output), list[dict[str, Any]]()
    for manifest in read_manifests(store):
        found = read_rows(store, [manifest], COLUMNS)
        wanted = [row for row in found if row["key"] in truths and row["status"] == KEPT][: most - len(rows)]
        images = read_images(store, manifest, {row["key"] for row in wanted})
        for row in wanted:
            for chunk in row["noun_chunks"]:  # phrases that the grounder of the output could not ground
                chunk["removed"] = None if chunk["removed"] in get_args(PhraseDrop) else chunk["removed"]
            row |= {"image": images.get(row["key"]), "given_noun_chunks": None, "given_chunks": None}
        rows += [row for row in wanted if row["image"]]
    return pa.Table.from_pylist(rows, schema=PARSED)


@dataclass(frozen=True)
class Measured:
    """The answers of a grounder, its speed, and the size of its weights (None: not on this machine)."""

    answers: list[Answer]
    images_per_s: float
    weights_mb: float | None


def run(name: str, table: pa.Table, truths: Mapping[str, Truth], device: str) -> Measured:
    """Ground all pictures; the time to load the model does not count."""
    stage = Ground(GroundConfig(grounder=name, device=device, floor=FLOOR))
    model: Any = getattr(stage.grounder, "model", None)
    weights = 0 if model is None else sum(p.numel() * p.element_size() for p in model.parameters())
    start_s = time.perf_counter()
    rows = stage(table).to_pylist()
    duration_s = time.perf_counter() - start_s
    found = [found_row(row | {"box_scores": [UNMEASURED] * len(row["boxes"] or ())}) for row in rows]
    answers = [truths[row.key].answer(row) for row in found]
    return Measured(answers, len(rows) / duration_s, weights / 1e6 or None)


UNMEASURED: Final = {"clip_cosine": None, "removed": None}


def report(runs: Mapping[str, Measured], least_precision: float) -> dict[str, Any]:
    """Print a line for each grounder and its differences to the first; return the figures."""
    thresholds = {name: choose_threshold(found.answers, least_precision) for name, found in runs.items()}
    first = next(iter(runs))

    def figures(pictures: Sequence[tuple[Answer, ...]]) -> dict[str, float]:
        of = {
            (name, measure): value
            for name, answers in zip(runs, zip(*pictures, strict=True), strict=True)
            for measure, value in measure_boxes(answers, thresholds[name]).items()
        }
        return {f"{name} {m}": v for (name, m), v in of.items()} | {
            f"{name} {m} - {first}": v - of[first, m] for (name, m), v in of.items() if name != first
        }

    pictures = list(zip(*(found.answers for found in runs.values()), strict=True))
    values, bounds = figures(pictures), intervals(figures, pictures)
    result: dict[str, Any] = {}
    for name, found in runs.items():
        weights = f"{found.weights_mb:.0f} MB" if found.weights_mb else "-"
        print(f"\n{name}: {found.images_per_s:.2f} images/s, weights {weights}, threshold {thresholds[name]:g}")
        result[name] = {"images_per_s": round(found.images_per_s, 3), "threshold": thresholds[name]}
        for key in [key for m in MEASURES for key in (f"{name} {m}", f"{name} {m} - {first}") if key in values]:
            low, high = bounds[key]
            print(f"  {key.removeprefix(name).strip():40}{values[key]:7.3f}  [{low:.3f}, {high:.3f}]")
            result[name][key.removeprefix(name).strip()] = [round(v, 4) for v in (values[key], low, high)]
    return result


def choose_threshold(answers: Sequence[Answer], least_precision: float) -> float:
    """Return the threshold with the highest recall at a precision, or with the best F1 if none reaches it."""
    boxes, n_true = [box for answer in answers for box in answer.boxes], sum(answer.n_true for answer in answers)
    points = score_points(boxes, n_true, 0.0, SCORES)
    f1 = {point: 2 * point.n_right / max(point.n_kept + n_true, 1) for point in points}
    best = recommended(points, least_precision) or max(points, key=lambda point: (f1[point], point.min_score))
    return best.min_score


def measure_boxes(answers: Sequence[Answer], threshold: float) -> dict[str, float]:
    """Return the average precision, and precision and recall at a threshold; 0 for a share of nothing."""
    boxes = sorted((box for answer in answers for box in answer.boxes), key=lambda box: -box.score)
    n_true = max(sum(answer.n_true for answer in answers), 1)
    right = list(accumulate(box.is_right for box in boxes))
    ap = sum(n / (place + 1) for place, (n, box) in enumerate(zip(right, boxes, strict=True)) if box.is_right)
    n_kept = sum(box.score >= threshold for box in boxes)
    n_right = right[n_kept - 1] if n_kept else 0
    return {"AP": ap / n_true, "precision": n_right / max(n_kept, 1), "recall": n_right / n_true}


if __name__ == "__main__":
    main()
