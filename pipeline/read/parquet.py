"""Read parquet files as records, without binary columns but that of the image, and without converting huge values."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.faults.fault import is_fault
from pipeline.read.columns import find_columns
from pipeline.read.config import ReadConfig
from pipeline.read.row_groups import BATCH_BYTES, read_batches
from pipeline.read.sizes import Sizes, batch_sizes, row_sizes
from pipeline.read.types import BadRecord, Load, Piece, Record

VALUE_ERRORS: Final = (OverflowError, ValueError, KeyError)
"""Exceptions of pyarrow for a value that no Python object can represent; KeyError for an unknown time zone."""
ROW_FACTOR: Final = 16
"""A row above `read.max_row_bytes` by this factor is not converted. The limits of `read` for its values, which count
characters and JSON, are all below it."""


def parquet_rows(piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]) -> Iterator[Load | None]:
    """Read the rows of a piece in batches of bounded size.

    Yields None for the rows whose index in the file is not wanted. Raises pyarrow.ArrowException for a damaged file.
    """
    for row, batch in read_batches(piece, config):
        wanted = [is_wanted(row + i) for i in range(batch.num_rows)]
        image = find_columns(batch.schema.names, config, ".parquet").image
        if all(wanted):
            yield from _loads(batch, image, config)
        else:
            loads = _loads(batch.filter(pa.array(wanted, pa.bool_())), image, config)
            yield from (next(loads) if is_one else None for is_one in wanted)


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
