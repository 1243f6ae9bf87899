"""The rows of two outputs that belong together."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.output.ledger import read_batches
from pipeline.output.store import Store
from schemas.manifest import Manifest

SCHEMA: Final = pa.schema({"key": pa.string(), "value": pa.string()})
Numbers = npt.NDArray[np.int64]


def pair_rows(outputs: Sequence[tuple[Store, Sequence[Manifest]]], column: str) -> bytes:
    """Return an Arrow file that gives each row of the first output the number of its row of the second, or -1.

    Rows belong together if `column` is equal; a null has no equal. Of several rows with one value, the n-th of both
    outputs in the order of their keys are a pair.
    """
    tables = [pa.Table.from_batches(read_parts(*output, column), SCHEMA) for output in outputs]
    both = pa.concat_tables(tables).combine_chunks()
    encoded = both["value"].combine_chunks().dictionary_encode()
    values = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64)
    first, second = (
        names(part["key"], values_of_part, both.num_rows)
        for part, values_of_part in zip(tables, np.split(values, [tables[0].num_rows]), strict=True)
    )
    rows = pc.fill_null(pc.index_in(first, value_set=second, skip_nulls=True), -1)
    sink = pa.BufferOutputStream()
    table = pa.table({"row": rows.cast(pa.int32())})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_parts(store: Store, manifests: Sequence[Manifest], column: str) -> Iterator[pa.RecordBatch]:
    """Yield key and value of `column` of all rows of an output."""
    for manifest in manifests:
        for batch in read_batches(store, manifest, tuple({"key", column})):
            yield pa.record_batch([batch["key"], batch[column]], schema=SCHEMA)


def names(keys: pa.ChunkedArray, values: Numbers, most: int) -> pa.Array:
    """Return the name of each row: its value, and its place by key among the rows with this value; null below 0.

    `most`: a number above all places.
    """
    table = pa.table({"value": values, "key": keys})
    order = pc.sort_indices(table, [("value", "ascending"), ("key", "ascending")]).to_numpy()
    ordered, at = values[order], np.arange(len(values))
    starts = np.where(np.diff(ordered, prepend=np.int64(-2)) != 0, at, 0)
    places = np.empty(len(values), np.int64)
    places[order] = at - np.maximum.accumulate(starts)
    return pa.array(values * most + places, mask=values < 0)
