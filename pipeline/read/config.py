"""What to read, which rows make a shard, and what a row is before it has our columns: plain values."""

from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
"""A row as its file has it: values by the names of the columns."""


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    """Which columns of the input are ours."""

    url_column: str | None = None  # column with the image's URL; none: url, image_url or link, in any letter case
    caption_column: str | None = None  # column with the caption; none: caption, text, alt_text, alt or title
    id_column: str | None = None  # column with the row's identifier; none: id, uid, sample_id, image_id or key


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file, and where the first of them starts, so that reading can begin there."""

    path: str
    first_row: int  # in this file, from 0
    n_rows: int
    size: int  # bytes of the whole file when it was planned
    offset: int = 0  # byte of the unpacked file at which the first row starts; 0 for parquet, which seeks by row
    line: int = 1  # line at which the first row starts, from 1; for messages


@dataclass(frozen=True)
class ShardPlan:
    """Rows [first_row, first_row + n_rows) of the whole input: they become one set of output files."""

    index: int
    first_row: int
    n_rows: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class BadRecord:
    """A row that could not be read, and why."""

    message: str
