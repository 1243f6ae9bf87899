"""The marks of boxes: a CSV that the explorer writes and `hypergrit quality` reads."""

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypergrit_common.disk import locked, write_text
from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.text import one_line
from pipeline.explore.index import read_parts, read_words
from pipeline.explore.quality.boxes import MODEL_STAGES, FoundBox, FoundRow, found_row, read_rows
from pipeline.explore.rows import Row

COLUMNS: Final = (
    *("key", "box", "phrase", "mark", "score", "clip_score", "caption"),
    *("x_min", "y_min", "x_max", "y_max"),
)
FORMULA: Final = r"(^|[;\t] *)(?=[=+\-@\t\r])"
"""Where a cell could begin by whose first character spreadsheets recognise a formula; some split at ; or tabs."""
CHOICES: Final = ("right", "wrong", "unsure", "")
"""The marks of a box; an empty one removes it."""
KEY, BOX, PHRASE, MARK = map(COLUMNS.index, ("key", "box", "phrase", "mark"))
CORNERS: Final = slice(COLUMNS.index("x_min"), None)


class MarkFile:
    """A CSV of marks, one line for each marked box. Other explorers may write it too, also for other outputs."""

    def __init__(self, path: Path) -> None:
        """Check the file if it exists. Raises UserError if it is not a CSV of marks."""
        self.path = path
        read_lines(path)

    def marks(self, index: Path) -> list[tuple[str, int, str]]:
        """Return key, number of the box, and mark of the marked boxes that the output of an index has.

        Raises UserError if the file cannot be read.
        """
        lines = [line for line in read_lines(self.path) if line[MARK]]
        boxes = boxes_of(index, {key_of(line) for line in lines}) if lines else {}
        names = [(key_of(line), int(line[BOX])) for line in lines]
        return [(*name, line[MARK]) for name, line in zip(names, lines, strict=True) if matches(line, boxes.get(name))]

    def set(self, row: Row, number: int, mark: str) -> None:
        """Set the mark of a box of a row in the file; its other lines stay, in their order.

        Raises ValueError for a box that cannot be marked, UserError if the file cannot be read or written.
        """
        new, file = mark_line(row, number, mark), io.StringIO()
        try:
            with locked(f"{self.path}.lock"):
                lines = read_lines(self.path)
                found = (i for i, old in enumerate(lines) if key_of(old) == row["key"] and int(old[BOX]) == number)
                place = next((i for i in found if matches(lines[i], [new])), len(lines))
                if place == len(lines) and not mark:
                    return
                lines[place : place + 1] = [new]
                csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([COLUMNS, *lines])
                write_text(self.path, file.getvalue())
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {one_line(error)}; give another file") from error


def key_of(line: Sequence[str]) -> str:
    """Return the key of a line. Spreadsheets remove the zeros in front of numbers."""
    return line[KEY].zfill(12)


def matches(line: Sequence[str], boxes: Sequence[Sequence[str]] | None) -> bool:
    """Return True if phrase and corners of a line are those of one of the boxes, which are lines too."""
    return any(safe(line[PHRASE]) == box[PHRASE] and is_close(line[CORNERS], box[CORNERS]) for box in boxes or ())


def is_close(texts: Sequence[str], others: Sequence[str]) -> bool:
    """Return True if numbers with four digits are equal, but for the last digit, which the browser rounds differently."""
    try:
        pairs = [(float(a.replace(",", ".")), float(b)) for a, b in zip(texts, others, strict=True)]
    except ValueError:
        return False
    return all(abs(a - b) < 1.5e-4 for a, b in pairs)


def boxes_of(index: Path, keys: Collection[str]) -> dict[tuple[str, int], list[list[str]]]:
    """Return the boxes with phrase and corners of the rows with these keys, as lines by key and number, from an index."""
    phrases, first = read_words(index)["phrase"], 0
    found: dict[tuple[str, int], list[list[str]]] = {}
    for rows, boxes in read_parts(index):
        places = np.flatnonzero(pc.is_in(rows["key"], pa.array(sorted(keys), pa.string())).to_numpy())
        names = dict(zip((places + first).tolist(), rows["key"].take(pa.array(places)).to_pylist(), strict=True))
        numbers = Counter[int]()
        for box in boxes.filter(pc.is_in(boxes["row"], pa.array(places + first, pa.int32()))).to_pylist():
            row, line = box["row"], [""] * len(COLUMNS)
            line[PHRASE] = safe(phrases[box["phrase"]])
            line[CORNERS] = [f"{box[name]:.4f}" for name in COLUMNS[CORNERS]]
            found.setdefault((names[row], numbers[row]), []).append(line)
            numbers[row] += 1
        first += rows.num_rows
    return found


def mark_line(row: Row, number: int, mark: str) -> list[str]:
    """Return the line of a box. Raises ValueError if there is no such box or mark, or if `marked_boxes` would refuse it."""
    if mark not in CHOICES or row["stage"] not in MODEL_STAGES or not row["caption"]:
        raise ValueError(f"the boxes of row {row['key']} cannot be marked as {mark!r}")
    found = found_row(row)
    box = next((box for box in found.boxes if box.number == number), None)
    if box is None:
        raise ValueError(f"row {row['key']} has no box {number}")
    return line_of(found, box, mark)


def line_of(row: FoundRow, box: FoundBox, mark: str) -> list[str]:
    """Return the line of a marked box, with COLUMNS. Texts that a spreadsheet would compute begin with an apostrophe."""
    clip = "" if box.clip_score is None else f"{box.clip_score:.4f}"
    texts = [row.key, str(box.number), safe(row.phrase(box)), mark, f"{box.score:.4f}", clip, safe(row.caption)]
    return [*texts, *(f"{corner:.4f}" for corner in box.corners)]


def safe(text: str) -> str:
    """Put an apostrophe before what a spreadsheet would take for a formula."""
    return re.sub(FORMULA, r"\1'", text)


def read_lines(path: Path) -> list[list[str]]:
    """Return the lines of a CSV of marks with COLUMNS; [] if it does not exist. Raises UserError."""
    if not path.exists():
        return []
    try:
        check_file(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path} has no column {missing[0]!r}; give another file with marks=")
            lines = [[row[name] or "" for name in COLUMNS] for row in reader]
        for line in lines:
            if line[MARK] not in CHOICES:
                raise ValueError(f"box {int(line[BOX])} of row {key_of(line)} is marked as {line[MARK][:40]!r}")
            int(line[BOX])
        return lines
    except (OSError, ValueError, csv.Error, AttributeError) as error:
        raise UserError(f"{path} is not a CSV of marks: {one_line(error)}; give another file with marks=") from error


def marked_boxes(output: str, path: Path) -> list[tuple[FoundRow, FoundBox, bool]]:
    """Return the boxes of an output that a CSV of marks has as right (True) or wrong (False).

    Raises UserError if there are none, if the output has no such box, and for a box with two marks.
    """
    lines = [line for line in read_lines(path) if line[MARK] in ("right", "wrong")]
    if not lines:
        raise UserError(f"{path} has no marks; mark boxes with `hypergrit explore {output} marks={path}`")
    rows = {row.key: row for row in read_rows(output, {key_of(line) for line in lines})}
    found = dict[tuple[str, int], tuple[FoundRow, FoundBox, bool]]()
    for line in lines:
        key, number, is_right = key_of(line), int(line[BOX]), line[MARK] == "right"
        row = rows.get(key)
        box = next((box for box in row.boxes if box.number == number), None) if row else None
        if row is None or box is None or not matches(line, [line_of(row, box, "")]):
            raise UserError(
                f"{path}: {output} has no box {number} of row {key} with the phrase {line[PHRASE][:80]!r} and these "
                "corners; give the output whose boxes were marked"
            )
        if found.setdefault((key, number), (row, box, is_right))[2] != is_right:
            raise UserError(f"{path}: box {number} of row {key} is marked as right and as wrong; keep one line")
    return list(found.values())
