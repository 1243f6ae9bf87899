"""Read the files of a shard row by row and sample by sample, in their order, so that little is in memory."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from common.tar import reader_of
from pipeline.write.restore import read_places
from pipeline.write.store import Store
from pipeline.write.tar import Place, SamplePlace
from schemas.files import INDEX
from schemas.rows import VERSION

BATCH_ROWS: Final = 64

Row = dict[str, Any]
Sample = tuple[str, dict[str, bytes]]
"""Key and members of a sample."""


def arrow_rows(path: str, schema: pa.Schema, version: str) -> Iterator[Row]:
    """Yield the rows of an Arrow file. Raises ValueError if it has another schema, and errors of Arrow if it is damaged.

    `version` is the schema version of its manifest: files of an earlier one may lack columns.
    """
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        check_schema(reader.schema, schema, version)
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            batch.validate(full=True)
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield from batch.slice(start, BATCH_ROWS).to_pylist()


def parquet_rows(path: str, schema: pa.Schema, version: str) -> Iterator[Row]:
    """Yield the rows of a parquet file. Raises like `arrow_rows`."""
    with pq.ParquetFile(path) as file:
        check_schema(file.schema_arrow, schema, version)
        for batch in file.iter_batches(BATCH_ROWS):
            yield from batch.to_pylist()


def check_schema(found: pa.Schema, expected: pa.Schema, version: str) -> None:
    """Raise ValueError if columns are missing or have another type; a file of an earlier version may have fewer."""
    if version == VERSION and found.names != expected.names:
        raise ValueError(f"its columns are {', '.join(found.names)}, but should be {', '.join(expected.names)}")
    for item in found:
        number = expected.get_field_index(item.name)
        if number < 0 or (version == VERSION and not item.equals(expected.field(number))):
            kind = "missing in the schema" if number < 0 else f"not {expected.field(number).type}"
            raise ValueError(f"its column {item.name} of the type {item.type} is {kind}")


def read_samples(store: Store, name: str, places: Iterable[SamplePlace]) -> Iterator[Sample]:
    """Yield the samples of a tar with the contents of their members. Raises ValueError if a member occurs twice."""
    with store.fs.open(store.path(name), "rb") as file:
        read_at = reader_of(file)
        for sample in places:
            if len({member.name for member in sample.members}) != len(sample.members):
                raise ValueError(f"a member of sample {sample.key} occurs twice")
            yield sample.key, {member.name: read_at(member.offset, member.size) for member in sample.members}


def indexed_places(path: str, version: str) -> dict[str, list[SamplePlace]]:
    """Read `_index/` of a shard: format -> places. Raises like `arrow_rows`."""
    found: dict[str, list[SamplePlace]] = {}
    for row in arrow_rows(path, INDEX, version):
        members = [Place(member["name"], member["offset"], member["size"]) for member in row["members"]]
        place = SamplePlace(row["key"], row["offset"], row["offset"] + row["size"], members)
        found.setdefault(row["format"], []).append(place)
    return found


def tar_places(store: Store, name: str) -> Sequence[SamplePlace]:
    """Return the places of the samples of a tar, from its headers. Raises TarError."""
    return list(read_places(store, name))
