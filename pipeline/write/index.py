"""Write `_index/`: the place of every sample and member in the tars of a shard, for readers with random access."""

from collections.abc import Mapping, Sequence
from typing import IO

import pyarrow as pa

from pipeline.write.samples import to_json
from pipeline.write.tar import SamplePlace
from schemas.files import INDEX, INDEX_MEMBER
from schemas.manifest import Provenance
from schemas.rows import VERSION


def write_index(file: IO[bytes], places: Mapping[str, Sequence[SamplePlace]], metadata: dict[str, str]) -> None:
    """Write the places of the samples of each format's tar as one record batch of the schema INDEX."""
    samples = [sample for found in places.values() for sample in found]
    members = [member for sample in samples for member in sample.members]
    bounds = [0]
    for sample in samples:
        bounds.append(bounds[-1] + len(sample.members))
    columns = [
        pa.array([name for name, found in places.items() for _ in found], INDEX.field("format").type),
        pa.array([sample.key for sample in samples], pa.string()),
        pa.array([sample.start for sample in samples], pa.int64()),
        pa.array([sample.end - sample.start for sample in samples], pa.int64()),
        pa.ListArray.from_arrays(
            pa.array(bounds, pa.int32()),
            pa.StructArray.from_arrays(
                [
                    pa.array([member.name for member in members], INDEX_MEMBER.field("name").type),
                    pa.array([member.offset for member in members], pa.int64()),
                    pa.array([member.size for member in members], pa.int64()),
                ],
                fields=list(INDEX_MEMBER),
            ),
            type=INDEX.field("members").type,
        ),
    ]
    schema = INDEX.with_metadata(metadata)
    with pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def file_metadata(provenance: Provenance) -> dict[str, str]:
    """Return the metadata of parquet and Arrow files."""
    return {"hypergrit_schema": VERSION, "hypergrit_provenance": to_json(provenance).decode()}
