"""Rows of JSONL, CSV and TSV files, in bounded memory; every line of the file ends in one row."""

import csv
from collections import deque
from collections.abc import Iterator
from typing import IO, Final, NamedTuple

from pipeline.read.config import ReadConfig
from pipeline.read.types import BadRecord, RawRow

SKIP_BYTES: Final = 1 << 20


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


def read_lines(file: IO[bytes], offset: int, number: int, max_bytes: int) -> Iterator[Line]:
    """Yield the lines from the position of `file`. Lines that are too long are skipped, never held in memory."""
    read_line = file.readline
    while text := read_line(max_bytes + 1):
        n_bytes = len(text)
        if n_bytes > max_bytes and not text.endswith(b"\n"):
            while rest := read_line(SKIP_BYTES):
                n_bytes += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield Line(offset, number, n_bytes, None)
        else:
            yield Line(offset, number, n_bytes, text)
        offset += n_bytes
        number += 1


def jsonl_rows(file: IO[bytes], offset: int, number: int, config: ReadConfig) -> Iterator[RawRow]:
    """Yield a row for each line that is not blank."""
    for line in read_lines(file, offset, number, config.max_row_bytes):
        if line.text is None:
            yield RawRow(line.offset, line.number, line.too_long(config))
        elif not line.text.isspace():
            yield RawRow(line.offset, line.number, line.text)


def csv_rows(
    file: IO[bytes], delimiter: str, offset: int, number: int, n_fields: int, config: ReadConfig
) -> Iterator[RawRow]:
    """Yield the rows of a CSV file; a row may span lines. Invalid UTF-8 becomes surrogates; `read` drops such rows.

    If a row spans lines, it must have `n_fields` fields and correct quotes. Otherwise its first line holds a quote that
    is not closed: this line is a bad row, and reading continues with the next line.
    """
    source = read_lines(file, offset, number, config.max_row_bytes)
    again = deque[Line]()  # lines to read once more
    taken: list[Line] = []  # lines of the current row
    is_at_end = False

    def feed() -> Iterator[str]:
        nonlocal is_at_end
        while True:
            line = again.popleft() if again else next(source, None)
            if line is None:
                is_at_end = True
                return
            if taken and (line.text is None or len(taken) == config.max_row_lines):
                again.appendleft(line)
                raise UnclosedQuoteError
            taken.append(line)
            yield _decode(line)

    reader = csv.reader(feed(), delimiter=delimiter)
    while True:
        taken.clear()
        problem = ""
        values: list[str] = []
        try:
            values = next(reader)
            if is_at_end or (len(taken) > 1 and not _is_row(taken, delimiter, n_fields)):
                problem = "a quoted field does not end in this row"
        except StopIteration:
            return
        except UnclosedQuoteError:
            problem = f"a quoted field does not end within {len(taken)} lines (read.max_row_lines)"
        except csv.Error as error:
            problem = str(error)
        first = taken[0]
        if first.text is None:
            yield RawRow(first.offset, first.number, first.too_long(config))
        elif problem:
            yield RawRow(first.offset, first.number, BadRecord(problem))
            again.extendleft(reversed(taken[1:]))
            is_at_end = False
            reader = csv.reader(feed(), delimiter=delimiter)
        elif values:
            yield RawRow(first.offset, first.number, values)


def _decode(line: Line) -> str:
    return (line.text or b"").decode("utf-8", errors="surrogateescape")


def _is_row(lines: list[Line], delimiter: str, n_fields: int) -> bool:
    """True if lines are exactly one row with `n_fields` fields and correct quotes."""
    try:
        rows = list(csv.reader(map(_decode, lines), delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    return len(rows) == 1 and len(rows[0]) == n_fields
