"""Batches of the rows of parquet files. The next shard of a file is read on from where the last one ended.

A row group may hold the rows of a thousand shards, and its columns are compressed in pages that only a reader from the
start of the group can find.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.remote import open_file
from pipeline.read.columns import find_columns
from pipeline.read.config import ReadConfig
from pipeline.read.types import Piece

BATCH_ROWS: Final = 4096
BATCH_BYTES: Final = 1 << 24
"""Bytes of values that are converted to Python at a time."""
BUFFER_BYTES: Final = 1 << 16
"""Bytes of a column of a local file that are read at a time. Of a remote file, each column of a group is one request."""

KEPT_BYTES: Final = 1 << 28
"""Bytes of a row group of a remote file that stay in memory until the next shard is read."""

_last: "list[Stream]" = []
"""The stream of the last piece that this process read, if the next may continue it."""

given: dict[Piece, Iterator[tuple[int, pa.RecordBatch]]] = {}
"""The batches of pieces that another process has read (pipeline.read.ahead)."""


def read_batches(piece: Piece, config: ReadConfig) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a piece in batches, each with the index of its first row in the file.

    Only the row groups that contain them are read, up to the last row. Binary columns are skipped, except those for URL,
    caption, identifier and `where`, since some writers store text in binary columns, and that of the image. Values in
    the dictionary of a column are not repeated in memory. Raises pyarrow.ArrowException for a damaged file, and like
    `open_file`.
    """
    if (batches := given.pop(piece, None)) is not None:
        yield from batches
        return
    stream = _last.pop() if _last else None
    if stream is not None and not stream.continues(piece, config):
        stream.close()
        stream = None
    if stream is None:
        stream = Stream(piece, config)
    try:
        yield from stream.take(piece.first_row, piece.n_rows)
    except BaseException:
        stream.close()
        raise
    # Without a version, nothing tells whether the file is still the same.
    if piece.version and stream.n_bytes <= KEPT_BYTES:
        _last.append(stream)
    else:
        stream.close()


class Stream:
    """The batches of a parquet file from the row group of a piece on."""

    def __init__(self, piece: Piece, config: ReadConfig) -> None:
        self.piece, self.config = piece, config
        self.file = open_file(piece.path)
        try:
            metadata = pq.ParquetFile(self.file).metadata
            is_local = _is_local(self.file)
            self.parquet = pq.ParquetFile(
                self.file,
                metadata=metadata,
                read_dictionary=_coded_columns(metadata),
                pre_buffer=not is_local,
                buffer_size=BUFFER_BYTES if is_local else 0,
            )
        except BaseException:
            self.close()
            raise
        self.metadata: Any = metadata
        self.is_local = is_local
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.starts = np.cumsum([0, *sizes])
        self.names = self._columns()
        self.waiting: tuple[int, pa.RecordBatch] | None = None
        self.group = self._group(piece.first_row)
        self.batches = self._read(self.group)
        self.next_row = int(self.starts[self.group])

    def continues(self, piece: Piece, config: ReadConfig) -> bool:
        """Return True if a piece follows in the row group that is being read, or is the beginning of the next one."""
        mine = self.piece
        is_same = (piece.path, piece.size, piece.version) == (mine.path, mine.size, mine.version)
        if not is_same or config != self.config:
            return False
        row = self.waiting[0] if self.waiting else self.next_row
        return row <= piece.first_row < int(self.starts[min(self.group + 1, len(self.starts) - 1)]) or (
            row == piece.first_row
        )

    @property
    def n_bytes(self) -> int:
        """The compressed bytes of the row group that are in memory: those of the columns that are read."""
        if self.is_local or self.group >= self.metadata.num_row_groups:
            return 0
        group = self.metadata.row_group(self.group)
        return sum(column.total_compressed_size for column in _chunks(group, self.names))

    def take(self, first: int, n: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows [first, first + n), each batch with its first row; those after them wait for the next call."""
        while item := self.waiting or next(self.batches, None):
            row, batch = self.waiting = item
            if row >= first + n:
                return
            start, end = (min(max(bound - row, 0), batch.num_rows) for bound in (first, first + n))
            if end > start:
                yield row + start, batch.slice(start, end - start)
            if row + batch.num_rows > first + n:
                return
            self.waiting = None
            if row + batch.num_rows == first + n:
                return

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError, ValueError):
            self.file.close()

    def _read(self, first_group: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        for group in range(first_group, len(self.starts) - 1):
            self.group, self.next_row = group, int(self.starts[group])
            size = _batch_rows(self.metadata.row_group(group), self.names)
            for batch in self.parquet.iter_batches(batch_size=size, row_groups=[group], columns=self.names):
                row, self.next_row = self.next_row, self.next_row + batch.num_rows
                yield row, batch

    def _group(self, row: int) -> int:
        """Return the row group of a row; the last one for a row that the file does not have."""
        return max(0, min(int(np.searchsorted(self.starts, row, side="right")), len(self.starts) - 1) - 1)

    def _columns(self) -> list[str]:
        schema, config = self.parquet.schema_arrow, self.config
        columns = find_columns(schema.names, config, ".parquet")
        binary = {columns.url, columns.id, columns.path, columns.image, *columns.captions}
        binary |= config.selection.columns.keys() if config.selection else set()
        return [item.name for item in schema if item.name in binary or not has_bytes(item.type)]


def _is_local(file: Any) -> bool:
    try:
        file.fileno()
    except (OSError, AttributeError):
        return False
    return True


def _coded_columns(metadata: pq.FileMetaData) -> list[str]:
    """The text columns that are stored as codes of a dictionary: a value of a megabyte may occur in every row."""
    columns = (
        metadata.row_group(group).column(i)
        for group in range(metadata.num_row_groups)
        for i in range(metadata.num_columns)
    )
    return sorted(
        {
            column.path_in_schema
            for column in columns
            if column.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in name for name in column.encodings)
        }
    )


def _chunks(group: Any, names: Collection[str]) -> list[Any]:
    """The metadata of those chunks of a row group that belong to the columns `names`."""
    columns = (group.column(i) for i in range(group.num_columns))
    return [column for column in columns if column.path_in_schema.split(".")[0] in names]


def _batch_rows(group: pq.RowGroupMetaData, names: Collection[str]) -> int:
    """The number of rows of a batch with BATCH_BYTES, on average."""
    n_bytes = sum(column.total_uncompressed_size for column in _chunks(group, names))
    return int(max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(n_bytes, 1))))


def has_bytes(type_: pa.DataType) -> bool:
    """True for binary types, and lists or structs that contain one, such as the images of Hugging Face datasets."""
    if pa.types.is_dictionary(type_):
        return has_bytes(type_.value_type)
    if type_.num_fields:
        return any(has_bytes(type_.field(i).type) for i in range(type_.num_fields))
    is_type = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(type_) for check in is_type)
