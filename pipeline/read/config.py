"""What to read, and which rows make a shard: plain values that travel as JSON."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    url_column: str | None = None  # column with the image's address; none: url, image_url or link, in any case
    caption_column: str | None = None  # column with the caption; none: caption, text, alt_text, alt or title
    id_column: str | None = None  # column with the input's own identifier; none: id, uid, sample_id, image_id or key


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file; `offset` (bytes) and `line` say where the first one starts: one seeks there."""

    path: str
    first_row: int  # in this file, from 0
    n_rows: int
    size: int  # bytes of the whole file when it was planned
    offset: int = 0  # in the unpacked file; 0 for parquet, which seeks by row
    line: int = 1


@dataclass(frozen=True)
class ShardPlan:
    """Rows [first_row, first_row + n_rows) of the whole input: they become one set of output files."""

    index: int
    first_row: int
    n_rows: int
    pieces: tuple[Piece, ...]
