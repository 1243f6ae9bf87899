"""Types shared by planning and reading: records, pieces of files, and the plan of a shard."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Record = dict[str, Any]
"""A row of an input file: values by column name."""
IMAGE: Final = "__image__"
"""Key of the encoded image in a record of a tar; chosen so that no column has this name."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one file, with the position at which reading starts."""

    path: str
    first_row: int  # index in this file, from 0
    n_rows: int
    size: int  # size of the complete file in bytes, at the time of planning
    offset: int = 0  # byte of the decompressed file at which the first row starts; 0 for parquet, which seeks by row
    line: int = 1  # line at which the first row starts, from 1; for messages
    # ETag or time of modification at the time of planning, "" if unknown; tells whether the file changed until reading
    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Rows [first_row, first_row + n_rows) of the input, which become the output files of one shard.

    >>> from pipeline import ShardPlan
    >>> plan = ShardPlan(index=3, first_row=3000, n_rows=1000, pieces=())
    >>> plan.first_row + plan.n_rows
    4000
    """

    index: int
    first_row: int
    n_rows: int
    pieces: tuple[Piece, ...]
    # first rows of the files that were appended to the input of the job, up to those of this shard
    appends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "appends", tuple(self.appends))  # a list, if read from JSON


@dataclass(frozen=True)
class BadRecord:
    """A row that cannot be read, with the reason."""

    message: str


class BadRowError(ValueError):
    """A record that cannot become a row; the message is the reason."""


Load = Callable[[], Record | BadRecord]
"""Parses one row."""


class RawRow(NamedTuple):
    """A row before parsing: its position (byte and line) and the input of the format's parser, or a BadRecord."""

    offset: int
    line: int
    payload: Any
