"""The form on which people mark boxes as right or wrong: written and read as CSV."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.errors import UserError
from common.files import check_file
from common.text import one_line
from pipeline.quality.boxes import FoundBox, FoundRow, read_rows
from pipeline.quality.covered import Sample
from pipeline.quality.curve import Judged
from pipeline.quality.sample import Candidate

COLUMNS: Final = (
    *("key", "box", "phrase", "mark", "score", "clip_score", "caption", "x_min", "y_min", "x_max", "y_max"),
    *("sample_of", "sample_min_score"),
)
"""Forms before version 0.5 lack the columns of the sample: the boxes it was drawn from (kept or all), and their least
score."""
MARKS: Final = {
    **dict.fromkeys(("right", "r", "yes", "y", "1", "true"), "right"),
    **dict.fromkeys(("wrong", "w", "no", "n", "0", "false"), "wrong"),
    **dict.fromkeys(("unsure", "u", "?"), "unsure"),
}
"""What may stand in the column `mark`; an empty one is no mark."""
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters by which spreadsheets recognise a formula."""


@dataclass(frozen=True)
class Mark:
    """The judgement of one box: right or wrong. `line` is its line in the CSV. Older forms have no `sample`."""

    key: str
    box: int
    phrase: str
    is_right: bool
    line: int
    sample: Sample | None


def write_form(candidates: Iterable[Candidate]) -> str:
    """Return the CSV with an empty column `mark`. Texts that a spreadsheet would compute begin with an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
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
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def read_marks(path: Path) -> list[Mark]:
    """Read the boxes that are marked as right or wrong. Raises UserError with file, line and fix."""
    try:
        check_file(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("key", "box", "phrase", "mark") if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path} has no column {missing[0]!r}; give the CSV that pipeline.audit wrote")
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
