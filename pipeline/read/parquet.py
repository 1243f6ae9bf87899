"""Read parquet files as records, without binary columns such as images."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import IO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.read.types import BadRecord, Record

TextColumns = Callable[[Sequence[str]], Collection[str]]
"""Maps the column names of a file to those that hold text, even if their type is binary."""
VALUE_ERRORS: Final = (OverflowError, ValueError, KeyError)
"""Exceptions of pyarrow for a value that no Python object can represent; KeyError for an unknown time zone."""


def parquet_records(file: IO[bytes], first: int, n: int, text_columns: TextColumns) -> Iterator[Record | BadRecord]:
    """Read rows [first, first + n) in batches; only the row groups that contain them are read.

    Raises pyarrow.ArrowException for a damaged file.
    """
    parquet = pq.ParquetFile(file)
    texts = text_columns(parquet.schema_arrow.names)
    names = [item.name for item in parquet.schema_arrow if item.name in texts or not has_bytes(item.type)]
    groups, skip = _row_groups(parquet.metadata, first, n)
    for batch in parquet.iter_batches(batch_size=4096, row_groups=groups, columns=names):
        rows = batch.slice(min(skip, batch.num_rows), n)
        skip, n = max(skip - batch.num_rows, 0), n - rows.num_rows
        yield from as_records(rows)
        if not n:
            return


def _row_groups(metadata: pq.FileMetaData, first: int, n: int) -> tuple[list[int], int]:
    """The row groups that contain rows [first, first + n), and the number of rows to skip in the first of them."""
    groups, skip, start = list[int](), 0, 0
    for i in range(metadata.num_row_groups):
        n_rows = metadata.row_group(i).num_rows
        if start < first + n and start + n_rows > first:
            skip = skip if groups else first - start
            groups.append(i)
        start += n_rows
    return groups, skip


def as_records(batch: pa.RecordBatch) -> Iterator[Record | BadRecord]:
    """Convert a batch to records; a row with a value that Python cannot represent becomes a BadRecord.

    Examples are a date in the year 50,000 and text in Latin-1.
    """
    try:
        yield from batch.to_pylist()
        return
    except VALUE_ERRORS:
        pass  # convert the values one by one to find the bad row
    for i in range(batch.num_rows):
        record: Record = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                record[name] = column[i].as_py()
            except VALUE_ERRORS as error:
                yield BadRecord(f"the {column.type} in column {name} cannot be read: {error}")
                break
        else:
            yield record


def has_bytes(type_: pa.DataType) -> bool:
    """True for binary types, and lists or structs that contain one, such as the images of Hugging Face datasets."""
    if pa.types.is_dictionary(type_):
        return has_bytes(type_.value_type)
    if type_.num_fields:
        return any(has_bytes(type_.field(i).type) for i in range(type_.num_fields))
    is_type = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(type_) for check in is_type)
