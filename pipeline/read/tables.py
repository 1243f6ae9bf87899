"""Arrow tables of another engine as an input."""

import os
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from hypergrit_common.errors import UserError
from hypergrit_common.files import new_folder
from hypergrit_common.text import one_line

GROUP_ROWS: Final = 10_000
"""Rows of a row group, which a reader has to read from its start."""
FILE_BYTES: Final = 256_000_000
"""Bytes of the tables of a file, which are in memory together."""


def write_input(tables: Iterable[pa.Table | pa.RecordBatch], folder: str | os.PathLike[str]) -> int:
    """Write Arrow tables or record batches as an input: a new folder of parquet files. Returns the number of rows.

    A job reads its input again after a restart, and in many processes, which an iterator does not allow. The folder appears
    when it is complete. Columns mean what they mean in every input (docs/inputs.md); an image is a column of bytes. Raises
    UserError if the folder is not empty, and for tables without a row or of different columns.

    >>> import pyarrow as pa
    >>> from tempfile import TemporaryDirectory
    >>> from pipeline import ReadConfig, plan_shards, write_input
    >>> tables = (pa.table({"url": [f"http://example.org/{i}.jpg"], "caption": ["a dog"]}) for i in range(3))
    >>> with TemporaryDirectory() as folder:
    ...     n_rows = write_input(tables, f"{folder}/input")
    ...     plans = plan_shards(f"{folder}/input", rows_per_shard=2, limit=None, config=ReadConfig())
    >>> n_rows, [plan.n_rows for plan in plans]
    (3, [2, 1])
    """
    n_rows = 0
    try:
        with new_folder(folder) as draft:
            for number, table in enumerate(joined(tables)):
                pq.write_table(table, draft / f"{number:05d}.parquet", row_group_size=GROUP_ROWS)
                n_rows += len(table)
            if not n_rows:
                raise UserError("the tables have no row; give an iterator that was not used before")
    except pa.ArrowException as error:
        raise UserError(f"the tables cannot be joined or written as parquet: {one_line(error)}") from error
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {one_line(error)}; give another folder") from error
    return n_rows


def joined(tables: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join consecutive tables up to FILE_BYTES; columns of nulls take the type that they have elsewhere."""
    waiting, n_bytes = list[pa.Table](), 0
    for table in tables:
        waiting.append(table if isinstance(table, pa.Table) else pa.Table.from_batches([table]))
        n_bytes += table.nbytes
        if n_bytes >= FILE_BYTES:
            yield pa.concat_tables(waiting, promote_options="permissive")
            waiting, n_bytes = [], 0
    if waiting:
        yield pa.concat_tables(waiting, promote_options="permissive")
