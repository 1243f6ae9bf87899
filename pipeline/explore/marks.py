"""The marks of boxes, in the CSV that pipeline.audit --marks reads."""

import csv
import io
import threading
from pathlib import Path
from typing import Final

from common.disk import write_text
from common.errors import UserError
from common.files import check_file
from common.text import one_line
from pipeline.explore.shards import Row
from pipeline.quality.boxes import MODEL_STAGES, found_row
from pipeline.quality.covered import Sample
from pipeline.quality.marks import COLUMNS, form_row
from pipeline.quality.sample import Candidate

CHOICES: Final = ("right", "wrong", "unsure", "")
"""The marks of a box; an empty one removes it."""
MARK: Final = COLUMNS.index("mark")
SAMPLE: Final = slice(COLUMNS.index("sample_of"), None)


class MarkFile:
    """A CSV of marks, one line for each marked box. Lines that it already had stay, in their order."""

    def __init__(self, path: Path) -> None:
        """Read the file if it exists. Raises UserError if it is not a CSV of marks."""
        self.path, self._lock = path, threading.Lock()
        self._lines = read_lines(path)

    def marks(self) -> list[tuple[str, int, str]]:
        """Return key, number of the box, and mark of all lines with a mark."""
        return [(key, box, line[MARK]) for (key, box), line in self._lines.items() if line[MARK]]

    def set(self, row: Row, number: int, mark: str) -> None:
        """Set the mark of a box of a row and write the file. Raises ValueError for a box that cannot be marked."""
        line = mark_line(row, number, mark)
        with self._lock:
            lines = {**self._lines, (row["key"], number): line}
            if not mark and (row["key"], number) not in self._lines:
                return
            file = io.StringIO()
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines.values()])
            write_text(self.path, file.getvalue())
            self._lines = lines


def mark_line(row: Row, number: int, mark: str) -> list[str]:
    """Return the line of a box. The columns of the sample are empty: the box was not drawn from one.

    Raises ValueError if there is no such box or mark, or if pipeline.audit would refuse it.
    """
    if mark not in CHOICES or row["stage"] not in MODEL_STAGES or not row["caption"]:
        raise ValueError(f"the boxes of row {row['key']} cannot be marked as {mark!r}")
    found = found_row(row)
    box = next((box for box in found.boxes if box.number == number), None)
    if box is None:
        raise ValueError(f"row {row['key']} has no box {number}")
    line = form_row(Candidate(found, box, Sample(False, 0.0)))
    line[MARK] = mark
    line[SAMPLE] = ["", ""]
    return line


def read_lines(path: Path) -> dict[tuple[str, int], list[str]]:
    """Return the lines of a CSV of marks by key and number of the box; {} if it does not exist. Raises UserError."""
    if not path.exists():
        return {}
    try:
        check_file(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path} has no column {missing[0]!r}; give another file with marks=")
            rows = list(reader)
        return {(row["key"].zfill(12), int(row["box"])): [row[name] or "" for name in COLUMNS] for row in rows}
    except (OSError, ValueError, csv.Error, AttributeError) as error:
        raise UserError(f"{path} is not a CSV of marks: {one_line(error)}; give another file with marks=") from error
