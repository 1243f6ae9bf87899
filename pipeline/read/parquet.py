"""Rows of a parquet, without the columns that hold bytes."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import IO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.read.types import BadRecord, Record

TextColumns = Callable[[Sequence[str]], Collection[str]]
"""Of a file's column names, those that are text whatever their type says."""
VALUE_ERRORS: Final = (OverflowError, ValueError, KeyError)
"""What pyarrow raises for a value that no Python object can hold; a KeyError for an unknown time zone."""


def parquet_records(file: IO[bytes], first: int, n: int, text_columns: TextColumns) -> Iterator[Record | BadRecord]:
    """Rows [first, first + n): only the row groups that hold them are read, in batches."""
    parquet = pq.ParquetFile(file)
    texts = text_columns(parquet.schema_arrow.names)
    names = [item.name for item in parquet.schema_arrow if item.name in texts or not has_bytes(item.type)]
    start, groups, skip = 0, list[int](), 0
    for i in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(i).num_rows
        if start < first + n and start + rows > first:
            skip = first - start if not groups else skip
            groups.append(i)
        start += rows
    for batch in parquet.iter_batches(batch_size=4096, row_groups=groups, columns=names):
        taken = batch.slice(min(skip, batch.num_rows), n)
        skip, n = max(skip - batch.num_rows, 0), n - taken.num_rows
        yield from as_records(taken)
        if not n:
            return


def as_records(batch: pa.RecordBatch) -> Iterator[Record | BadRecord]:
    """The batch's rows; one with a value that Python cannot hold (a date of the year 50,000, text in Latin-1) is bad."""
    try:
        yield from batch.to_pylist()
        return
    except VALUE_ERRORS:
        pass  # some row of the batch: find out which
    for i in range(batch.num_rows):
        record: Record = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                record[name] = column[i].as_py()
            except VALUE_ERRORS as error:
                yield BadRecord(f"column {name} holds no readable {column.type}: {error}")
                break
        else:
            yield record


def has_bytes(type_: pa.DataType) -> bool:
    """Whether a column holds bytes, be it within its lists and structs, as images do in parquets of `datasets`."""
    if pa.types.is_dictionary(type_):
        return has_bytes(type_.value_type)
    if type_.num_fields:
        return any(has_bytes(type_.field(i).type) for i in range(type_.num_fields))
    is_type = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(type_) for check in is_type)
