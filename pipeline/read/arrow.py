"""Arrow files, and the streams of Arrow that Hugging Face's `save_to_disk` writes as data-00000-of-00001.arrow."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.files import check_file
from hypergrit_common.remote import open_file, open_store
from pipeline.read.config import ReadConfig
from pipeline.read.parquet import batch_loads, check_types, read_columns
from pipeline.read.streams import input_errors
from pipeline.read.types import Counted, Load, Piece


class Arrow(Counted):
    """Rows of Arrow files and streams. A shard is found by passing over the batches before it, which are not decoded."""

    name = "arrow"
    suffixes = (".arrow", ".feather")
    is_compressible = False
    has_images = True

    def count(self, path: str, config: ReadConfig) -> int:
        with input_errors(path), open_batches(path) as (schema, batches):
            check_types(path, schema, config, self)
            return sum(batch.num_rows for batch in batches)

    def loads(
        self, piece: Piece, config: ReadConfig, is_wanted: Callable[[int], bool]
    ) -> Iterator[tuple[int, Load | None]]:
        row, end = 0, piece.first_row + piece.n_rows
        with open_batches(piece.path) as (schema, batches):
            names = read_columns(schema, config)
            for batch in batches:
                start, stop = max(piece.first_row - row, 0), min(end - row, batch.num_rows)
                if start < stop:
                    found = batch.select(names).slice(start, stop - start)
                    yield from batch_loads(row + start, found, config, is_wanted)
                row += batch.num_rows
                if row >= end:
                    return


@contextmanager
def open_batches(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a file as its schema and its batches; those of a local file are not in memory until their values are used.

    Raises pyarrow.ArrowException for a damaged file, and like `open_file`.
    """
    fs, name = open_store(path)
    if isinstance(fs, LocalFileSystem):
        check_file(name)
    with pa.memory_map(name) if isinstance(fs, LocalFileSystem) else pa.PythonFile(open_file(path), mode="r") as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        reader: Any = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
        yield reader.schema, map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
