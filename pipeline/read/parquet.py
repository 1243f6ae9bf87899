"""Parquet files. The next shard of a file is read on from where the last one ended.

A row group may hold the rows of a thousand shards, and its columns are compressed in pages that only a reader from the
start of the group can find.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypergrit_common.arrow_sizes import (
    LARGE,
    Sizes,
    batch_sizes,
    coded_columns,
    enumerate_chunks,
    group_sizes,
    list_items,
    row_sizes,
)
from hypergrit_common.remote import open_file
from pipeline.faults import is_fault
from pipeline.read.config import ReadConfig
from pipeline.read.nested import has_bytes, is_text, root_of, types_of
from pipeline.read.rows import FINEHARD_COLUMN, GRIT_COLUMNS, check_columns, check_image_type, find_columns, with_named
from pipeline.read.streams import DamageError, input_errors, open_stream
from pipeline.read.types import BadRecord, Counted, Load, Piece, Record, ShardPlan, Survey

BATCH_ROWS: Final = 4096
BATCH_BYTES: Final = 1 << 24
"""Bytes of values that are converted to Python at a time."""
MAX_JOINED: Final = 64
"""Decoded batches that are joined: of rows that may be long, few are decoded at a time, in buffers that are larger."""
BUFFER_BYTES: Final = 1 << 16
"""Bytes of a column of a local file that are read at a time. Of a remote file, each column of a group is one request."""

KEPT_BYTES: Final = 1 << 28
"""Bytes of a row group of a remote file that stay in memory until the next shard is read."""

_last: "list[Stream]" = []
"""The stream of the last piece that this process read, if the next may continue it."""

given: dict[Piece, Iterator[tuple[int, pa.RecordBatch]]] = {}
"""The batches of pieces that another process has read (`provided`)."""


def read_batches(piece: Piece, config: ReadConfig) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a piece in batches, each with the index of its first row in the file.

    Only the row groups that contain them are read, up to the last row. Binary columns are skipped, except those for
    URL, caption, identifier and `where`, since some writers store text in binary columns, and that of the image. Values
    in the dictionary of a column are not repeated in memory. Raises pyarrow.ArrowException for a damaged file, and like
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
                read_dictionary=coded_columns(metadata),
                pre_buffer=not is_local,
                buffer_size=BUFFER_BYTES if is_local else 0,
                coerce_int96_timestamp_unit="us",  # nanoseconds end in the year 2262
            )
        except BaseException:
            self.close()
            raise
        self.metadata: Any = metadata
        self.is_local = is_local
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.starts = np.cumsum([0, *sizes])
        self.names = read_columns(self.parquet.schema_arrow, config)
        self.waiting: tuple[int, pa.RecordBatch] | None = None
        # that of the first row; the last one for a row that the file does not have
        self.group = max(
            0, min(int(np.searchsorted(self.starts, piece.first_row, side="right")), len(self.starts) - 1) - 1
        )
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
        return sum(column.total_compressed_size for _, column in enumerate_chunks(group, self.names))

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
            size = _batch_rows(self.metadata, group, self.names)
            for batch in _joined(self.parquet.iter_batches(batch_size=size, row_groups=[group], columns=self.names)):
                row, self.next_row = self.next_row, self.next_row + batch.num_rows
                yield row, batch


def read_columns(schema: pa.Schema, config: ReadConfig) -> list[str]:
    """Return the columns that are read: all but those with bytes that have no use."""
    needed = needed_columns(schema, config)
    return [item.name for item in schema if item.name in needed or not has_bytes(item.type)]


def image_column(schema: pa.Schema, config: ReadConfig) -> str | None:
    """Return the column with images, or with the field that has them."""
    image = find_columns(with_named(types := types_of(schema), config), config, Parquet.has_images).image
    return None if image is None else root_of(image, types)


def needed_columns(schema: pa.Schema, config: ReadConfig) -> set[str]:
    """Return the columns whose values make a row, or decide about it; the others become `extra`."""
    found = find_columns(columns := with_named(types := types_of(schema), config), config, Parquet.has_images)
    names = {found.url, found.id, found.path, found.image, *found.captions, *config.named_columns}
    roots = {root_of(name, types) for name in names if name and name in columns}
    return roots | ({*GRIT_COLUMNS, FINEHARD_COLUMN} & types.keys())


def _is_local(file: Any) -> bool:
    try:
        file.fileno()
    except (OSError, AttributeError):
        return False
    return True


def _batch_rows(metadata: pq.FileMetaData, group: int, names: Collection[str]) -> int:
    """The number of rows of a batch with BATCH_BYTES, on average; few if a few rows may have far more than the others."""
    n_rows, sizes = metadata.row_group(group).num_rows, group_sizes(metadata, group, names)
    size = int(min(BATCH_ROWS, BATCH_BYTES * n_rows // max(sizes.decoded, 1), LARGE // max(sizes.hidden, 1)))
    return max(1, size)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of up to BATCH_BYTES, BATCH_ROWS and MAX_JOINED small ones: a batch costs more than a short row."""
    found, n_bytes, n_rows = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        n_bytes, n_rows = n_bytes + batch.nbytes, n_rows + batch.num_rows
        if found and (n_bytes > BATCH_BYTES or n_rows > BATCH_ROWS or len(found) == MAX_JOINED):
            yield pa.concat_batches(found) if len(found) > 1 else found[0]
            found, n_bytes, n_rows = [], batch.nbytes, batch.num_rows
        found.append(batch)
    yield from [pa.concat_batches(found)] if len(found) > 1 else found


# Rows of parquet files that one process reads for many workers, shard after shard.
#
# The rows of a row group can only be found from its start: workers that take its shards in turn would all decode it.

MAX_BYTES: Final = 1 << 26
"""Bytes of a shard above which its worker reads the rows itself."""

Packed = list[bytes]
"""The rows of each piece of a shard: an Arrow stream."""


def can_be_ahead(plan: ShardPlan) -> bool:
    """Return True if all rows of a shard are in parquet files with a version.

    Without a version a file is opened again for each shard, which many workers do faster than one reader.
    """
    return bool(plan.pieces) and all(
        piece.version and piece.path.lower().endswith(Parquet.suffixes) for piece in plan.pieces
    )


def pack_rows(plan: ShardPlan, config: ReadConfig) -> Packed | None:
    """Read the rows of a shard, whose pieces are of parquet files; None if they contain images or are large.

    Raises like `read_batches`.
    """
    packed: Packed = []
    n_left = MAX_BYTES
    for piece in plan.pieces:
        batches = list[pa.RecordBatch]()
        for _, batch in read_batches(piece, config):
            image = image_column(batch.schema, config)
            if image is not None and has_bytes(batch.schema.field(image).type):
                return None
            batches.append(compact(batch))
            n_left -= batches[-1].nbytes
            if n_left < 0:
                return None
        if sum(batch.num_rows for batch in batches) != piece.n_rows:
            return None  # the file has changed, which the worker reports
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        packed.append(bytes(sink.getvalue().to_pybytes()))
    return packed


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
    """Let `read_batches` take the rows of a shard from those that `pack_rows` read, within the block."""
    found = dict(zip(plan.pieces, packed, strict=True)) if packed else {}
    given.update({piece: _batches(piece, stream) for piece, stream in found.items()})
    try:
        yield
    finally:
        for piece in found:
            given.pop(piece, None)


def _batches(piece: Piece, stream: bytes) -> Iterator[tuple[int, pa.RecordBatch]]:
    row = piece.first_row
    for batch in pa.ipc.open_stream(stream):
        yield row, batch
        row += batch.num_rows


# Read parquet files as records, without binary columns but that of the image, and without converting huge values.

VALUE_ERRORS: Final = (OverflowError, ValueError, KeyError)
"""Exceptions of pyarrow for a value that no Python object can represent; KeyError for an unknown time zone."""
ROW_FACTOR: Final = 16
"""A row above `max_row_bytes` by this factor is not converted. The limits of `read` for its values, which count
characters and JSON, are all below it."""
JSON_ITEM: Final = 3
"""The fewest characters of an item of a list in the JSON of `extra`, which holds all lists but those of captions."""


class Parquet(Counted):
    """Rows of parquet files, in batches of bounded size."""

    name = "parquet"
    suffixes = (".parquet",)
    is_compressible = False
    has_images = True

    def count(self, path: str, config: ReadConfig) -> int:
        return self.survey(path, config).n_rows

    def survey(self, path: str, config: ReadConfig, below: str = "") -> Survey:
        with input_errors(path), open_stream(path) as file:
            parquet = pq.ParquetFile(file)
            schema, metadata, types = parquet.schema_arrow, parquet.metadata, types_of(parquet.schema_arrow)
            check_image_type(path, schema, config)
            check_columns(path, types if len(types) == len(schema) else schema.names, config, self, below)
            n_rows = sum(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
            if n_rows != metadata.num_rows:
                raise DamageError(f"its footer counts {metadata.num_rows} rows, its row groups have {n_rows}")
            read = read_columns(schema, config)
            columns = {name: types[name] for name in read}
            return Survey(n_rows, columns, [name for name in schema.names if name not in columns])

    def loads(
        self, piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, Load | None]]:
        for row, batch in read_batches(piece, config):
            wanted = [is_wanted(row + i) for i in range(batch.num_rows)]
            image = image_column(batch.schema, config)
            loads = _loads(batch if all(wanted) else batch.filter(pa.array(wanted, pa.bool_())), image, config)
            yield from ((0, next(loads) if is_one else None) for is_one in wanted)


def _loads(batch: pa.RecordBatch, image: str | None, config: ReadConfig) -> Iterator[Load]:
    """Yield the rows of a batch; those that are too long become a BadRecord. An image is converted with its row."""
    if image is None:
        yield from _records(batch, config)
        return
    images = batch.column(image)
    sizes, most = row_sizes(images), config.max_image_bytes + config.max_url_characters
    has_url = find_columns(types_of(batch.schema), config, Parquet.has_images).url is not None
    for i, load in enumerate(_records(batch.drop_columns([image]), config)):
        if sizes[i] > most and has_url and pa.types.is_list(images.type) and len(images[i]) > 1:
            yield load  # several pictures are not used beside a URL
        elif sizes[i] > most:
            message = f"the image has {sizes[i]} bytes, more than the limit of {config.max_image_bytes}"
            yield partial(BadRecord, message)
        else:
            yield partial(_with_image, load, image, images, i)


def _with_image(load: Load, name: str, images: pa.Array, i: int) -> Record | BadRecord:
    record = load()
    if isinstance(record, BadRecord) or not images[i].is_valid:
        return record
    return {**record, name: images[i].as_py()}


def _records(batch: pa.RecordBatch, config: ReadConfig) -> Iterator[Load]:
    """Yield the rows of a batch without image; those that are too long become a BadRecord and are not converted."""
    sizes, most = batch_sizes(batch), max(ROW_FACTOR * config.max_row_bytes, BATCH_BYTES)
    types = types_of(batch.schema)
    found = find_columns(types, config, Parquet.has_images)  # of an identifier, its text will do
    needed = needed_columns(batch.schema, config) - {found.id}.difference(config.named_columns)
    others = set(types).difference(root_of(name, types) for name in found.captions if name in with_named(types, config))
    n_items = sum((list_items(batch[name]) for name in others), np.zeros(batch.num_rows, np.int64))
    most_items = 2 * config.max_row_bytes // JSON_ITEM
    for start, end in _ranges(np.where(n_items > most_items, most + 1, sizes)):
        if n_items[start] > most_items:
            message = f"the row has {n_items[start]} values in lists, more than the limit of {most_items}"
            yield partial(BadRecord, message)
        elif end - start == 1 and sizes[start] > most:
            message = f"the row has {sizes[start]} bytes, more than the limit of {ROW_FACTOR * config.max_row_bytes}"
            yield partial(BadRecord, message)
        else:
            yield from as_records(batch.slice(start, end - start), needed)


def _ranges(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Divide rows with these sizes into ranges (start, end) of up to BATCH_BYTES; a larger row is one of its own."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        end = max(int(np.searchsorted(ends, before + BATCH_BYTES, side="right")), start + 1)
        yield start, end
        start = end


def as_records(batch: pa.RecordBatch, needed: Collection[str]) -> Iterator[Load]:
    """Convert a batch to records.

    A value that Python cannot represent, such as a date in the year 50,000 or text in Latin-1, becomes Arrow's text of
    it; in one of the columns `needed`, its row becomes a BadRecord.
    """
    columns = [
        _values(name, column, name in needed) for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    for values in zip(*columns, strict=True) if columns else [()] * batch.num_rows:
        bad = next((value for value in values if isinstance(value, BadRecord)), None)
        pairs = list(zip(batch.schema.names, values, strict=True))
        yield partial(dict, pairs) if bad is None else partial(BadRecord, bad.message)


def _values(name: str, column: Any, is_needed: bool) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return list(column.to_pylist())
    except BaseException as error:
        if not is_fault(error):
            raise
    return [_value(name, column[i : i + 1], is_needed) for i in range(len(column))]  # one by one, to find the bad one


def _value(name: str, one: Any, is_needed: bool) -> Any:
    try:
        return one[0].as_py()
    except (*VALUE_ERRORS, pa.ArrowException) as error:
        return BadRecord(f"the {one.type} in column {name!r} cannot be read: {error}") if is_needed else _as_text(one)


def _as_text(one: Any) -> Any:
    """The only value of an array, with texts of Arrow for the values in it that Python cannot represent."""
    if isinstance(one, pa.ExtensionArray):
        return _value("", one.storage, False)
    if pa.types.is_struct(one.type):
        return {one.type.field(i).name: _value("", one.field(i), False) for i in range(one.type.num_fields)}
    if hasattr(one.type, "value_type"):  # of lists
        items = one.flatten()
        return [_value("", items[i : i + 1], False) for i in range(len(items))]
    if is_text(one.type):
        return one.cast(pa.large_binary())[0].as_py().decode(errors="replace")
    return one.to_string(indent=0, skip_new_lines=True)[1:-1]
