"""The values that planning and reading exchange: records, pieces of files, and the plan of a shard."""

from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
"""A row as its file holds it: values by column name."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file, with the position at which reading can begin."""

    path: str
    first_row: int  # in this file, from 0
    n_rows: int
    size: int  # bytes of the whole file when it was planned
    offset: int = 0  # byte of the decompressed file at which the first row starts; 0 for parquet, which seeks by row
    line: int = 1  # line at which the first row starts, from 1; for messages


@dataclass(frozen=True)
class ShardPlan:
    """Rows [first_row, first_row + n_rows) of the whole input, which become one set of output files."""

    index: int
    first_row: int
    n_rows: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class BadRecord:
    """A row that could not be read, with the reason."""

    message: str
