"""Rows of parquet files that one process reads for many workers, shard after shard.

The rows of a row group can only be found from its start: workers that take its shards in turn would all decode it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.read import row_groups
from pipeline.read.columns import find_columns
from pipeline.read.config import ReadConfig
from pipeline.read.formats import format_of
from pipeline.read.types import Piece, ShardPlan

MAX_BYTES: Final = 1 << 26
"""Bytes of a shard above which its worker reads the rows itself."""

Packed = list[bytes]
"""The rows of each piece of a shard: an Arrow stream."""


def can_be_ahead(plan: ShardPlan) -> bool:
    """Return True if all rows of a shard are in parquet files with a version.

    Without a version a file is opened again for each shard, which many workers do faster than one reader.
    """
    return bool(plan.pieces) and all(piece.version and format_of(piece.path) == "parquet" for piece in plan.pieces)


def pack_rows(plan: ShardPlan, config: ReadConfig) -> Packed | None:
    """Read the rows of a shard, whose pieces are of parquet files; None if they contain images or are large.

    Raises like `row_groups.read_batches`.
    """
    packed: Packed = []
    n_left = MAX_BYTES
    for piece in plan.pieces:
        batches = list[pa.RecordBatch]()
        for _, batch in row_groups.read_batches(piece, config):
            if not batches and find_columns(batch.schema.names, config, ".parquet").image:
                return None
            batches.append(compact(batch))
            n_left -= batches[-1].nbytes
            if n_left < 0:
                return None
        if sum(batch.num_rows for batch in batches) != piece.n_rows:
            return None  # the file has changed, which the worker reports
        packed.append(to_stream(batches))
    return packed


def to_stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return batches of one schema, at least one, as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose dictionaries, which are those of whole row groups, have only the values of its rows."""
    columns = [_compact(column) if pa.types.is_dictionary(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _compact(column: pa.DictionaryArray) -> pa.DictionaryArray:
    used = column.indices.unique().drop_null()
    indices = pc.index_in(column.indices, value_set=used)
    return pa.DictionaryArray.from_arrays(indices, column.dictionary.take(used))


@contextmanager
def provided(plan: ShardPlan, packed: Packed | None) -> Iterator[None]:
    """Let `row_groups.read_batches` take the rows of a shard from those that `pack_rows` read, within the block."""
    found = dict(zip(plan.pieces, packed, strict=True)) if packed else {}
    row_groups.given.update({piece: _batches(piece, stream) for piece, stream in found.items()})
    try:
        yield
    finally:
        for piece in found:
            row_groups.given.pop(piece, None)


def _batches(piece: Piece, stream: bytes) -> Iterator[tuple[int, pa.RecordBatch]]:
    row = piece.first_row
    for batch in pa.ipc.open_stream(stream):
        yield row, batch
        row += batch.num_rows
