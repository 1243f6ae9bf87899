"""Sizes of Arrow and parquet data, known before they are decoded: small files may hold gigabytes of repetitions."""

import struct
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

LARGE: Final = 1 << 28
"""Bytes of decoded data that are always accepted."""
RATIO: Final = 64
"""More data than LARGE are accepted if they are at most this many times their file: texts shrink to a tenth, and data that
shrink more, such as empty columns, are small."""


ROW_BYTES: Final = 1 << 22
"""Bytes that rows of the pipeline may have on average: the limits of `read` allow a text and other columns of megabytes."""
MOST: Final = 1 << 30
"""Bytes that are accepted for any number of rows: rows that fill more with what shrinks to less than a RATIO-th are a bomb."""


def check_size(decoded: int, stored: int, n_rows: int = 0) -> None:
    """Raise ValueError for data that are not worth decoding: far more bytes than are stored, or than `n_rows` rows have."""
    if decoded > max(LARGE, RATIO * stored, min(ROW_BYTES * n_rows, MOST)):
        raise ValueError(f"its {stored:,} bytes hold {decoded:,} bytes of data, far more than such a file has")


MAX_ROWS: Final = 1024
"""Rows of a batch or row group that count for this limit; a file may claim any number."""
FEW_ROWS: Final = 1 << 20
"""Rows that an Arrow file may have at least; a larger file has one row in a byte at most."""

# Parquet files, by their footer.

WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}
"""Bytes of a value in memory by its physical type, if they are not 8; those of a text are beside its content."""
REPEATING: Final = ("DELTA_BYTE_ARRAY",)
"""Encodings in which each value may repeat the one before it: one has at most the bytes of all."""


class GroupSizes(NamedTuple):
    """Bytes of a row group in memory; `hidden`: those of columns that a few rows may have alone, though few are stored."""

    decoded: int
    hidden: int


def group_sizes(metadata: pq.FileMetaData, group: int, names: Collection[str] | None = None) -> GroupSizes:
    """Return the sizes of a row group, of all columns or of `names`, by its numbers of values."""
    decoded = hidden = 0
    for i, chunk in enumerate_chunks(metadata.row_group(group), names):
        column: Any = metadata.schema.column(i)
        width = WIDTHS.get(chunk.physical_type, max(8, column.length))
        size = max(chunk.total_uncompressed_size, width * chunk.num_values)
        alone = size if column.max_repetition_level else chunk.total_uncompressed_size
        if any(name in chunk.encodings for name in REPEATING) or alone > max(
            LARGE, RATIO * chunk.total_compressed_size
        ):
            hidden += alone
        decoded += size
    return GroupSizes(decoded, hidden)


def enumerate_chunks(group: Any, names: Collection[str] | None = None) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and the metadata of the chunks of a row group, or of those of the columns `names`."""
    columns = ((i, group.column(i)) for i in range(group.num_columns))
    return ((i, item) for i, item in columns if names is None or item.path_in_schema.split(".")[0] in names)


def coded_columns(metadata: pq.FileMetaData) -> list[str]:
    """Return the text columns that are stored as codes of a dictionary: a value of a megabyte may occur in every row."""
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    texts = (item for group in groups for _, item in enumerate_chunks(group) if item.physical_type == "BYTE_ARRAY")
    return sorted({item.path_in_schema for item in texts if any("DICTIONARY" in name for name in item.encodings)})


def read_parquet(content: bytes, columns: Collection[str] | None = None) -> pa.Table:
    """Read a parquet file of the pipeline; texts may be in dictionaries.

    Raises ValueError like `check_size`, and for an encoding that the pipeline does not write.
    """
    metadata = pq.read_metadata(pa.BufferReader(content))
    for group in range(metadata.num_row_groups):
        chunks = enumerate_chunks(metadata.row_group(group))
        if odd := {name for _, chunk in chunks for name in chunk.encodings if name in REPEATING}:
            raise ValueError(f"it has the encoding {min(odd)}, which is not written here")
    sizes = [group_sizes(metadata, group).decoded for group in range(metadata.num_row_groups)]
    n_rows = min(metadata.num_rows, MAX_ROWS * len(sizes))
    check_size(sum(sizes), len(content), n_rows)
    file = pq.ParquetFile(pa.BufferReader(content), metadata=metadata, read_dictionary=coded_columns(metadata))
    table = file.read(columns=None if columns is None else list(columns))
    check_size(sum(int(batch_sizes(batch).sum()) for batch in table.to_batches()), len(content), n_rows)
    return table


# Arrow files, by the lengths that precede their compressed buffers. Only these are read, and the tables of FlatBuffers
# that name the buffers.

DICTIONARY, BATCH = 2, 3
"""Types of messages that have buffers."""


def open_arrow_file(
    source: pa.NativeFile | bytes,
    schema: pa.Schema | None = None,
    has_rows: bool = False,
    buffers: Collection[int] | None = None,
    **options: Any,
) -> pa.ipc.RecordBatchFileReader:
    """Open an Arrow file with this schema, or with any whose types fill memory as their buffers do.

    `has_rows`: its rows are those of the pipeline; `buffers`: those of each batch that will be read. Raises ValueError
    like `check_size`, also for a damaged file and for other types, and pyarrow.ArrowException.
    """
    source = pa.BufferReader(source) if isinstance(source, bytes) else source
    try:
        lengths = list(_lengths(source, buffers))
    except (struct.error, IndexError) as error:
        raise ValueError(f"its footer is damaged: {error}") from error
    check_size(sum(n for n, _ in lengths), source.size(), sum(min(n, MAX_ROWS) for _, n in lengths) if has_rows else 0)
    if (n_rows := sum(n for _, n in lengths)) > max(FEW_ROWS, source.size()):
        raise ValueError(f"its {source.size():,} bytes hold {n_rows:,} rows, far more than such a file has")
    source.seek(0)
    reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(**options))
    if schema is not None and not reader.schema.equals(schema):
        raise ValueError(
            f"its columns are {', '.join(reader.schema.names)[:200]}, but should be {', '.join(schema.names)}"
        )
    if odd := [field for field in reader.schema if not _is_plain(field.type)]:
        raise ValueError(f"the column {odd[0].name} has the type {str(odd[0].type)[:80]}, which is not written here")
    return reader


def _is_plain(kind: Any) -> bool:
    """False for types of which a few bytes may stand for many values, such as views, runs and nulls."""
    if pa.types.is_dictionary(kind):
        return _has_offsets(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return getattr(kind, "list_size", 1) > 0 and _is_plain(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_plain(field.type) for field in kind)
    is_number = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return is_number or _has_offsets(kind)


def read_arrow_file(source: pa.NativeFile | bytes, schema: pa.Schema) -> pa.Table:
    """Read an Arrow file. Raises like `open_arrow_file`, also for invalid data and those that a dictionary repeats."""
    source = pa.BufferReader(source) if isinstance(source, bytes) else source
    table = open_arrow_file(source, schema).read_all()
    table.validate(full=True)
    check_size(sum(int(batch_sizes(batch).sum()) for batch in table.to_batches()), source.size())
    return table


def count_buffers(kind: Any) -> int:
    """Return the number of buffers of an array of this type in a batch; of the types that hold no view, union or null."""
    return int(kind.num_buffers) + sum(count_buffers(kind.field(i).type) for i in range(kind.num_fields))


def _lengths(source: pa.NativeFile, wanted: Collection[int] | None) -> Iterator[tuple[int, int]]:
    """Yield the bytes of the `wanted` buffers of each batch of an Arrow file, decompressed ones, and its rows."""

    size = source.size()

    def read(offset: int, n: int) -> bytes:
        if not (0 <= offset <= size and 0 <= n <= size):
            raise IndexError(f"it names byte {offset} of {size}")
        source.seek(offset)
        return bytes(source.read(n))

    (n_footer,) = struct.unpack("<i", read(size - 10, 4))
    footer = read(size - 10 - n_footer, n_footer) if 0 < n_footer <= size else b""
    root = _follow(footer, 0)
    for blocks in (_field(footer, root, 2), _field(footer, root, 3)):  # dictionaries and batches
        for offset, n_metadata, n_body in _structs(footer, blocks, "<qi4xq"):
            message = read(offset, n_metadata)
            start = 8 if message[:4] == b"\xff\xff\xff\xff" else 4
            message = message[start:]
            table = _follow(message, 0)
            kind, header = message[_field(message, table, 1) or 0], _follow(message, _field(message, table, 2))
            header = _follow(message, _field(message, header, 1)) if kind == DICTIONARY else header
            if kind not in (DICTIONARY, BATCH):
                continue
            is_compressed, n_bytes = _field(message, header, 3), 0
            for number, (place, length) in enumerate(_structs(message, _field(message, header, 2), "<qq")):
                if kind == BATCH and wanted is not None and number not in wanted:
                    continue
                prefix = read(offset + n_metadata + place, 8) if is_compressed and 8 <= length <= n_body else b""
                n_bytes += max(0, length, *struct.unpack("<q", prefix or bytes(8)))
            n_rows = struct.unpack_from("<q", message, _field(message, header, 0))[0] if kind == BATCH else 0
            yield n_bytes, max(n_rows, 0)


def _follow(data: bytes, place: int) -> int:
    """The place to which the offset at `place` leads."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """The place of a field of a table; 0 if the table has none."""
    fields = table - int(struct.unpack_from("<i", data, table)[0])
    slot = 4 + 2 * number
    has_slot = slot < struct.unpack_from("<H", data, fields)[0]
    offset = int(struct.unpack_from("<H", data, fields + slot)[0]) if has_slot else 0
    return table + offset if offset else 0


def _structs(data: bytes, place: int, form: str) -> Iterator[tuple[Any, ...]]:
    """The items of the vector of structs to which a field at `place` leads; none if there is no such field."""
    if place:
        start = _follow(data, place)
        (n,) = struct.unpack_from("<I", data, start)
        yield from (struct.unpack_from(form, data, start + 4 + i * struct.calcsize(form)) for i in range(n))


# Sizes of the rows of Arrow arrays, computed without converting a value to Python.

ITEM_BYTES: Final = 2
"""Bytes for a value without a length, such as a number: the least that it takes as JSON."""

Sizes = NDArray[np.int64]


def batch_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return the bytes of each row [n] of a batch."""
    return sum((row_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))


def row_sizes(array: pa.Array) -> Sizes:
    """Return the bytes of each row [n]: of text its UTF-8, of lists and structs the sum of their values.

    The values of a dictionary count in every row that refers to them.
    """
    kind: Any = array.type
    if isinstance(array, pa.ExtensionArray):
        return row_sizes(array.storage)
    if pa.types.is_dictionary(kind):
        return _lengths_of_codes(array)
    if _has_offsets(kind):
        return _differences(_offsets(array))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return row_sizes(array.cast(pa.large_binary()))
    if pa.types.is_struct(kind):
        fields = (row_sizes(array.field(i)) for i in range(kind.num_fields))
        return sum(fields, np.zeros(len(array), np.int64))
    if (ends := _list_ends(array)) is not None:
        values = array.values
        if not (values.type.num_fields or _has_sizes(values.type)):  # such as numbers, of which there may be millions
            return _differences(ends) * 2 * ITEM_BYTES
        return _differences(np.concatenate([[0], np.cumsum(row_sizes(values) + ITEM_BYTES)])[ends])
    return np.full(len(array), ITEM_BYTES, np.int64)


def list_items(array: pa.Array) -> Sizes:
    """Return the number of items in the lists of each row [n], those of lists in lists included."""
    if isinstance(array, pa.ExtensionArray):
        return list_items(array.storage)
    if pa.types.is_struct(array.type):
        return sum((list_items(array.field(i)) for i in range(array.type.num_fields)), np.zeros(len(array), np.int64))
    if (ends := _list_ends(array)) is None:
        return np.zeros(len(array), np.int64)
    n_items = _differences(ends)
    if array.values.type.num_fields:
        n_items = n_items + _differences(np.concatenate([[0], np.cumsum(list_items(array.values))])[ends])
    return n_items


def _list_ends(array: Any) -> NDArray[Any] | None:
    """The place of each list [n + 1] of an array in its values; None for an array of others."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return (np.arange(len(array) + 1) + array.offset) * kind.list_size
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
    return array.offsets.to_numpy() if is_list else None


def _has_sizes(kind: Any) -> bool:
    views = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return views or _has_offsets(kind) or pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType)


def _has_offsets(kind: Any) -> bool:
    is_type = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in is_type)


def _offsets(array: pa.Array) -> NDArray[Any]:
    """The position of each value [n + 1] of a text or binary array in its buffer; nothing is copied."""
    if len(array) == 0:
        return np.zeros(1, np.int64)
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    width = np.dtype(np.int64 if is_large else np.int32)
    count, skipped = len(array) + 1, array.offset * width.itemsize
    return np.frombuffer(array.buffers()[1], width, count, skipped)


def _differences(positions: NDArray[Any]) -> Sizes:
    return positions[1:].astype(np.int64) - positions[:-1]


def _lengths_of_codes(array: Any) -> Sizes:
    """The length of the value that each code [n] of a dictionary array stands for; only the codes' values are read."""
    values = array.dictionary
    if not _has_offsets(values.type) or len(values) == 0:
        return np.full(len(array), ITEM_BYTES, np.int64)
    codes, offsets = array.indices.fill_null(0).to_numpy(), _offsets(values)
    is_valid = array.indices.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_valid, offsets[codes + 1].astype(np.int64) - offsets[codes], 0)
