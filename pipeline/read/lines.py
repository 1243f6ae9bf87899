"""Rows of JSONL, CSV and TSV files, in bounded memory; every line of the file ends in one row."""

import csv
from collections import deque
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

from pipeline.read.config import ReadConfig
from pipeline.read.streams import DAMAGE
from pipeline.read.types import BadRecord, RawRow

SKIP_BYTES: Final = 1 << 20
BLANK_LINES: Final = 16
"""Blank lines in a row after which the next ones are skipped in blocks, which is slower for a few lines."""
WHITE_SPACE: Final = b" \t\n\r\v\f"
LINE_ENDS: Final = b"\r\n"


class Line(NamedTuple):
    """A line of a file; `text` is None for a line longer than `read.max_row_bytes`."""

    offset: int
    number: int
    n_bytes: int
    text: bytes | None

    def too_long(self, config: ReadConfig) -> BadRecord:
        return BadRecord(f"the line has {self.n_bytes} bytes, more than read.max_row_bytes={config.max_row_bytes}")


class UnclosedQuoteError(Exception):
    """A quoted field does not end within the limits of a row."""


class BlankLinesError(Exception):
    """Blank lines without end, as in a small gzip file of them, which expands to gigabytes."""


class Lines:
    """The lines of a file from its position on. Lines that are too long are skipped, never held in memory."""

    def __init__(self, file: IO[bytes], offset: int, number: int, config: ReadConfig) -> None:
        self._file, self._max_bytes = file, config.max_row_bytes
        self.offset, self.number = offset, number
        self._run_lines = self._run_bytes = 0  # of blank lines in a row
        self._run_end = -1  # number of the line after them

    def next(self) -> Line | None:
        """Return the next line; None at the end of the file."""
        read_line, max_bytes, n_bytes = self._file.readline, self._max_bytes, 0
        text: bytes | None = read_line(max_bytes + 1)
        if not text:
            return None
        n_bytes = len(text)
        if n_bytes > max_bytes and not text.endswith(b"\n"):
            text = None
            while rest := read_line(SKIP_BYTES):
                n_bytes += len(rest)
                if rest.endswith(b"\n"):
                    break
        line = Line(self.offset, self.number, n_bytes, text)
        self.offset += n_bytes
        self.number += 1
        return line

    def skip_blank(self, line: Line, blanks: bytes) -> None:
        """Count a blank line, the last that was read; skip those after it in blocks if there are many.

        Lines of the characters `blanks` are blank. Raises BlankLinesError for a run of more than `read.max_row_bytes`.
        """
        if line.number != self._run_end:
            self._run_lines = self._run_bytes = 0
        self._run_lines, self._run_bytes = self._run_lines + 1, self._run_bytes + line.n_bytes
        while self._run_lines >= BLANK_LINES and self._run_bytes <= self._max_bytes:
            block: bytes = self._file.peek()  # type: ignore[attr-defined]
            end = block.rfind(b"\n", 0, len(block) - len(block.lstrip(blanks))) + 1
            if not end:  # a line that is not blank, or continues in the next block
                break
            self._file.read(end)
            self.offset, self._run_bytes = self.offset + end, self._run_bytes + end
            self.number += block.count(b"\n", 0, end)
        if self._run_bytes > self._max_bytes:
            raise BlankLinesError(
                f"more than read.max_row_bytes={self._max_bytes} bytes of blank lines before line {self.number}"
            )
        self._run_end = self.number


def jsonl_rows(file: IO[bytes], offset: int, number: int, config: ReadConfig) -> Iterator[RawRow]:
    """Yield a row for each line that is not blank. Raises BlankLinesError."""
    lines = Lines(file, offset, number, config)
    while line := lines.next():
        if line.text is None:
            yield RawRow(line.offset, line.number, line.too_long(config))
        elif line.text.isspace():
            lines.skip_blank(line, WHITE_SPACE)
        else:
            yield RawRow(line.offset, line.number, line.text)


def csv_rows(
    file: IO[bytes], dialect: dict[str, Any], offset: int, number: int, n_fields: int, config: ReadConfig
) -> Iterator[RawRow]:
    """Yield the rows of a CSV file; a row may span lines. `dialect` are options of csv.reader.

    Invalid UTF-8 becomes surrogates; `read` drops such rows.

    If a row spans lines, it must have `n_fields` fields and correct quotes. Otherwise its first line holds a quote that
    is not closed: this line is a bad row, and reading continues with the next line. Raises BlankLinesError, and one of
    DAMAGE after the rows before the damage.
    """
    lines = Lines(file, offset, number, config)
    again = deque[Line]()  # lines to read once more
    taken: list[Line] = []  # lines of the current row
    is_at_end = False
    damage: list[Exception] = []

    def feed() -> Iterator[str]:
        nonlocal is_at_end
        while True:
            try:
                line = again.popleft() if again else None if damage else lines.next()
            except DAMAGE as error:  # raised after the lines before it, which an open quote has taken
                damage.append(error)
                line = None
            if line is None:
                is_at_end = True
                return
            if taken and (line.text is None or len(taken) == config.max_row_lines):
                again.appendleft(line)
                raise UnclosedQuoteError
            taken.append(line)
            yield _decode(line)

    reader = csv.reader(feed(), **dialect)
    while True:
        taken.clear()
        problem = ""
        values: list[str] = []
        try:
            values = next(reader)
            if is_at_end or (len(taken) > 1 and not _is_row(taken, dialect, n_fields)):
                problem = "a quoted field does not end in this row"
        except StopIteration:
            if damage:
                raise damage[0] from None
            return
        except UnclosedQuoteError:
            problem = f"a quoted field does not end within {len(taken)} lines (read.max_row_lines)"
        except csv.Error as error:
            problem = csv_problem(error)
        first = taken[0]
        if first.text is None:
            yield RawRow(first.offset, first.number, first.too_long(config))
        elif problem:
            yield RawRow(first.offset, first.number, BadRecord(problem))
            again.extendleft(reversed(taken[1:]))
            is_at_end = False
            reader = csv.reader(feed(), **dialect)
        elif values:
            yield RawRow(first.offset, first.number, values)
        elif not again:
            lines.skip_blank(first, LINE_ENDS)


def csv_problem(error: csv.Error) -> str:
    """Describe an error of the CSV parser, with the fix where its message has none."""
    text = str(error)
    if text.startswith("new-line character"):
        return (
            "a carriage return (\\r) that is not part of a line end; end lines with \\n or \\r\\n, or quote the field"
        )
    return text


def _decode(line: Line) -> str:
    return (line.text or b"").decode("utf-8", errors="surrogateescape")


def _is_row(lines: list[Line], dialect: dict[str, Any], n_fields: int) -> bool:
    """True if lines are exactly one row with `n_fields` fields and correct quotes."""
    try:
        rows = list(csv.reader(map(_decode, lines), **dialect, strict=True))
    except csv.Error:
        return False
    return len(rows) == 1 and len(rows[0]) == n_fields
