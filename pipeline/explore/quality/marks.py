"""The form on which people mark boxes as right or wrong: written and read as CSV."""

import base64
import csv
import hashlib
import heapq
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.html import render_page
from hypergrit_common.plots import COLORS, axes
from hypergrit_common.text import one_line
from pipeline.explore.quality.boxes import FoundBox, FoundRow, Sample, read_rows
from pipeline.explore.quality.curve import Judged, Point
from pipeline.output.ledger import read_images
from pipeline.output.store import Store
from pipeline.report.cards import thumbnail
from schemas.manifest import Manifest

# Choose the boxes that people judge. The same seed gives the same boxes, whatever the number of shards.

Which = Literal["kept", "all"]
"""Boxes to choose from: those that the job kept, or also those that a threshold of the scores removed."""
BY_THRESHOLD: Final = ("low_score", "low_presence", "low_clip_score")
THUMBNAIL_PX: Final = 480


@dataclass(frozen=True)
class Candidate:
    """A box to be judged, and the sample that it is drawn from."""

    row: FoundRow
    box: FoundBox
    sample: Sample


@dataclass(frozen=True)
class Question:
    """A box to be judged, with its image as a JPEG of `width` x `height` pixels."""

    candidate: Candidate
    jpeg: bytes
    width: int
    height: int


def choose(output: str, n: int, seed: int, which: Which = "kept", min_score: float = 0.0) -> list[Question]:
    """Choose `n` boxes by a hash of the seed, the row's key and the box's number, in the order of the hash.

    Each box with at least this grounding score has the same chance. Boxes whose image is not stored are left out.
    Images of dropped rows are not stored. A sample of all boxes that lacks some of them is named as one of kept boxes,
    since only of those it is complete. Raises UserError without any box.
    """
    ranked = heapq.nsmallest(n, candidates(output, seed, which, min_score), key=lambda item: item[0])
    if not ranked:
        raise UserError(f"{output} has no box to judge; run the job first, or give of=all or a lower min_score=")
    images: dict[str, bytes] = {}
    store = Store(output)
    shards = {manifest["shard"]: manifest for _, manifest, _ in ranked}
    for shard, manifest in sorted(shards.items()):
        keys = {candidate.row.key for _, m, candidate in ranked if m["shard"] == shard}
        images |= read_images(store, manifest, keys)
    shown = [candidate for _, _, candidate in ranked if candidate.row.key in images]
    sample = Sample(which == "all" and len(shown) == len(ranked), min_score)
    found = [
        Question(replace(candidate, sample=sample), *thumbnail(images[candidate.row.key], THUMBNAIL_PX))
        for candidate in shown
    ]
    if not found:
        raise UserError(
            f"{output} has no images; run the job with write.formats=[arrow,grit] or write.image_bytes=true"
        )
    return found


def candidates(output: str, seed: int, which: Which, min_score: float) -> Iterator[tuple[str, Manifest, Candidate]]:
    """Yield the boxes to choose from with their rank."""
    for manifest, row in read_rows(output):
        for box in row.boxes:
            is_chosen = box.removed is None or (which == "all" and box.removed in BY_THRESHOLD)
            if is_chosen and box.score >= min_score:
                text = f"{seed}:{row.key}:{box.number}"
                yield (
                    hashlib.sha256(text.encode()).hexdigest(),
                    manifest,
                    Candidate(row, box, Sample(which == "all", min_score)),
                )


COLUMNS: Final = (
    *("key", "box", "phrase", "mark", "score", "clip_score", "caption", "x_min", "y_min", "x_max", "y_max"),
    *("sample_of", "sample_min_score"),
)
"""The last two tell the sample: the boxes it was drawn from (kept or all), and their least score; the explorer's marks,
which are chosen by hand, leave them empty."""
MARKS: Final = {
    **dict.fromkeys(("right", "r", "yes", "y", "1", "true"), "right"),
    **dict.fromkeys(("wrong", "w", "no", "n", "0", "false"), "wrong"),
    **dict.fromkeys(("unsure", "u", "?"), "unsure"),
}
"""What may stand in the column `mark`; an empty one is no mark."""
FORMULA: Final = r"(^|[;\t] *)(?=[=+\-@\t\r])"
"""Where a cell could begin by whose first character spreadsheets recognise a formula; some split at ; or tabs."""


@dataclass(frozen=True)
class Mark:
    """The judgement of one box: right or wrong. `line` is its line in the CSV."""

    key: str
    box: int
    phrase: str
    is_right: bool
    line: int
    sample: Sample | None


def write_form(candidates: Iterable[Candidate]) -> str:
    """Return the CSV with an empty column `mark`. Texts that a spreadsheet would compute begin with an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    writer.writerows(map(form_row, candidates))
    return file.getvalue()


def form_row(candidate: Candidate) -> list[str]:
    """Return the line of a box, with COLUMNS."""
    row, box = candidate.row, candidate.box
    clip = "" if box.clip_score is None else f"{box.clip_score:.4f}"
    corners = [f"{corner:.4f}" for corner in box.corners]
    texts = [row.key, str(box.number), safe(row.phrase(box)), "", f"{box.score:.4f}", clip, safe(row.caption)]
    return [*texts, *corners, "all" if candidate.sample.of_all else "kept", f"{candidate.sample.min_score:g}"]


def safe(text: str) -> str:
    """Put an apostrophe before what a spreadsheet would take for a formula."""
    return re.sub(FORMULA, r"\1'", text)


def read_marks(path: Path) -> list[Mark]:
    """Read the boxes that are marked as right or wrong. Raises UserError with file, line and fix."""
    try:
        check_file(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("key", "box", "phrase", "mark") if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path} has no column {missing[0]!r}; give the CSV that hypergrit quality wrote")
            found: dict[tuple[str, int], Mark] = {}
            for row in reader:
                mark = one_mark(path, reader.line_num, row)
                if mark and found.setdefault((mark.key, mark.box), mark).is_right != mark.is_right:
                    raise UserError(
                        f"{path}, line {mark.line}: box {mark.box} of row {mark.key} has another mark in line "
                        f"{found[mark.key, mark.box].line}; keep one of them"
                    )
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}; give a CSV in UTF-8") from error
    if not found:
        raise UserError(f"{path} has no marks; write right, wrong or unsure into the column `mark`")
    return list(found.values())


def one_mark(path: Path, line: int, row: dict[str, str | None]) -> Mark | None:
    """Return the mark of a line; None if it is empty or unsure."""
    text = (row["mark"] or "").strip().lower()
    if not text:
        return None
    if text not in MARKS:
        raise UserError(f"{path}, line {line}: the mark is {text[:40]!r}; write right, wrong or unsure")
    key, number = (row["key"] or "").strip(), (row["box"] or "").strip()
    if not number.isdecimal():
        raise UserError(f"{path}, line {line}: `box` is {number[:40]!r}, not a number; keep the columns of the form")
    if MARKS[text] == "unsure":
        return None
    # Spreadsheets remove the zeros in front of numbers.
    return Mark(
        key.zfill(12), int(number), row["phrase"] or "", MARKS[text] == "right", line, sample_of(path, line, row)
    )


def sample_of(path: Path, line: int, row: Mapping[str, str | None]) -> Sample | None:
    """Return the sample of a line; None if it names none. Raises UserError if it is malformed."""
    of, lowest = ((row.get(name) or "").strip().lower() for name in ("sample_of", "sample_min_score"))
    if not of and not lowest:
        return None
    try:
        min_score = float(lowest.replace(",", "."))  # some spreadsheets write a decimal comma
    except ValueError:
        min_score = math.nan
    if of not in ("kept", "all") or not 0 <= min_score <= 1:
        raise UserError(
            f"{path}, line {line}: the sample is {of[:20]!r}, {lowest[:20]!r}, not kept or all and a score; "
            "keep the columns of the form"
        )
    return Sample(of == "all", min_score)


def marked_boxes(output: str, path: Path, marks: Sequence[Mark]) -> list[tuple[Mark, FoundRow, FoundBox]]:
    """Find the marked boxes in the output. Raises UserError if one is not there or has another phrase."""
    rows = {row.key: row for _, row in read_rows(output, {mark.key for mark in marks})}
    found = []
    for mark in marks:
        row = rows.get(mark.key)
        box = next((box for box in row.boxes if box.number == mark.box), None) if row else None
        if row is None or box is None or safe(row.phrase(box)) != mark.phrase:
            raise UserError(
                f"{path}, line {mark.line}: {output} has no box {mark.box} of row {mark.key} with the phrase "
                f"{mark.phrase[:80]!r}; give the output that was audited"
            )
        found.append((mark, row, box))
    return found


def judged(mark: Mark, box: FoundBox) -> Judged:
    """Return a marked box with the scores of the output."""
    return Judged(score=box.score, clip_score=box.clip_score, is_right=mark.is_right)


# The page on which people mark boxes: one file with its pictures, which a browser opens from disk.

TEMPLATES: Final = Path(__file__).resolve().parent


def render(questions: Sequence[Question], output: str) -> str:
    """Return the page as HTML. Captions and phrases are escaped; the marks are saved in the browser's storage."""
    pictures: dict[str, str] = {}
    cards, rows = [], [form_row(question.candidate) for question in questions]
    for question in questions:
        row, box = question.candidate.row, question.candidate.box
        pictures[row.key] = "data:image/jpeg;base64," + base64.b64encode(question.jpeg).decode()
        x0, y0, x1, y1 = box.corners
        cards.append(
            {
                "key": row.key,
                "parts": (row.caption[: box.start], row.phrase(box), row.caption[box.end :]),
                "width": question.width,
                "height": question.height,
                "x": x0 * question.width,
                "y": y0 * question.height,
                "w": (x1 - x0) * question.width,
                "h": (y1 - y0) * question.height,
            }
        )
    identity = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    return render_page(
        TEMPLATES,
        "audit.html",
        output=output,
        cards=cards,
        pictures=pictures,
        data={"columns": COLUMNS, "rows": rows, "identity": identity},
    )


# The curves of a calibration as a table and as a picture.

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
