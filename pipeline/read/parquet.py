"""Read parquet files as records, without binary columns but that of the image, and without converting huge values."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.faults.fault import is_fault
from pipeline.read.columns import find_columns
from pipeline.read.config import ReadConfig
from pipeline.read.sizes import Sizes, batch_sizes, row_sizes
from pipeline.read.types import BadRecord, Load, Record

VALUE_ERRORS: Final = (OverflowError, ValueError, KeyError)
"""Exceptions of pyarrow for a value that no Python object can represent; KeyError for an unknown time zone."""
BATCH_ROWS: Final = 4096
BATCH_BYTES: Final = 1 << 24
"""Bytes of values that are converted to Python at a time."""
ROW_FACTOR: Final = 16
"""A row above `read.max_row_bytes` by this factor is not converted. The limits of `read` for its values, which count
characters and JSON, are all below it."""


def parquet_rows(
    file: IO[bytes],
    first: int,
    n: int,
    config: ReadConfig,
    is_wanted: Callable[[int], bool],
) -> Iterator[Load | None]:
    """Read rows [first, first + n) in batches of bounded size; only the row groups that contain them are read.

    Yields None for the rows whose index in the file is not wanted. Binary columns are skipped, except those for URL,
    caption, identifier and `where`, since some writers store text in binary columns, and that of the image. Values in
    the dictionary of a column are not repeated in memory. Raises pyarrow.ArrowException for a damaged file.
    """
    parquet = pq.ParquetFile(file)
    metadata = parquet.metadata
    parquet = pq.ParquetFile(file, metadata=metadata, read_dictionary=_coded_columns(metadata))
    columns = find_columns(parquet.schema_arrow.names, config, ".parquet")
    binary = {columns.url, columns.id, columns.path, columns.image, *columns.captions}
    binary |= config.selection.columns.keys() if config.selection else set()
    names = [item.name for item in parquet.schema_arrow if item.name in binary or not has_bytes(item.type)]
    row = 0  # of the file
    for group in range(metadata.num_row_groups):
        n_rows = metadata.row_group(group).num_rows
        if row >= first + n:
            return
        if row + n_rows <= first:
            row += n_rows
            continue
        size = _batch_rows(metadata.row_group(group), names)
        for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=names):
            start, end = (min(max(bound - row, 0), batch.num_rows) for bound in (first, first + n))
            wanted = [is_wanted(row + i) for i in range(start, end)]
            row += batch.num_rows
            if all(wanted):
                yield from _loads(batch.slice(start, end - start), columns.image, config)
            else:
                some = batch.slice(start, end - start).filter(pa.array(wanted, pa.bool_()))
                loads = _loads(some, columns.image, config)
                yield from (next(loads) if is_one else None for is_one in wanted)


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


def _batch_rows(group: pq.RowGroupMetaData, names: Collection[str]) -> int:
    """The number of rows of a batch with BATCH_BYTES, on average."""
    columns = (group.column(i) for i in range(group.num_columns))
    n_bytes = sum(item.total_uncompressed_size for item in columns if item.path_in_schema.split(".")[0] in names)
    return int(max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(n_bytes, 1))))


def _loads(batch: pa.RecordBatch, image: str | None, config: ReadConfig) -> Iterator[Load]:
    """Yield the rows of a batch; those that are too long become a BadRecord. An image is converted with its row."""
    if image is None:
        yield from _records(batch, config)
        return
    images = batch.column(image)
    sizes, most = row_sizes(images), config.max_image_bytes + config.max_url_characters
    for i, load in enumerate(_records(batch.drop_columns([image]), config)):
        if sizes[i] > most:
            message = f"the image has {sizes[i]} bytes, more than read.max_image_bytes={config.max_image_bytes}"
            yield partial(BadRecord, message)
        else:
            yield partial(_with_image, load, image, images, i)


def _with_image(load: Load, name: str, images: pa.Array, i: int) -> Record | BadRecord:
    record = load()
    return record if isinstance(record, BadRecord) else {**record, name: images[i].as_py()}


def _records(batch: pa.RecordBatch, config: ReadConfig) -> Iterator[Load]:
    """Yield the rows of a batch without image; those that are too long become a BadRecord and are not converted."""
    sizes, most = batch_sizes(batch), max(ROW_FACTOR * config.max_row_bytes, BATCH_BYTES)
    for start, end in _ranges(sizes):
        if end - start == 1 and sizes[start] > most:
            message = f"the row has {sizes[start]} bytes, more than {ROW_FACTOR} times read.max_row_bytes"
            yield partial(BadRecord, message)
        else:
            yield from as_records(batch.slice(start, end - start))


def _ranges(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Divide rows with these sizes into ranges (start, end) of up to BATCH_BYTES; a larger row is one of its own."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        end = max(int(np.searchsorted(ends, before + BATCH_BYTES, side="right")), start + 1)
        yield start, end
        start = end


def as_records(batch: pa.RecordBatch) -> Iterator[Load]:
    """Convert a batch to records; a row with a value that Python cannot represent becomes a BadRecord.

    Examples are a date in the year 50,000 and text in Latin-1.
    """
    try:
        plain = [item.dictionary_decode() if pa.types.is_dictionary(item.type) else item for item in batch.columns]
        records = pa.RecordBatch.from_arrays(plain, names=batch.schema.names).to_pylist()
    except BaseException as error:
        if not is_fault(error):
            raise
        yield from (partial(_record, batch, i) for i in range(batch.num_rows))  # one by one, to find the bad row
        return
    yield from (partial(_same, record) for record in records)


def _same(record: Record) -> Record:
    return record


def _record(batch: pa.RecordBatch, i: int) -> Record | BadRecord:
    record: Record = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            record[name] = column[i].as_py()
        except VALUE_ERRORS as error:
            return BadRecord(f"the {_plain_type(column.type)} in column {name} cannot be read: {error}")
    return record


def _plain_type(type_: Any) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def has_bytes(type_: pa.DataType) -> bool:
    """True for binary types, and lists or structs that contain one, such as the images of Hugging Face datasets."""
    if pa.types.is_dictionary(type_):
        return has_bytes(type_.value_type)
    if type_.num_fields:
        return any(has_bytes(type_.field(i).type) for i in range(type_.num_fields))
    is_type = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(type_) for check in is_type)
