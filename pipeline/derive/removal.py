"""Remove rows from the files of a finished shard, without decoding or encoding an image."""

import io
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import UserError
from common.remote import one_line, store_errors
from common.tar import TarError, reader_of
from pipeline.read.takedown import STAGE_OF, TAKEN_DOWN, Kind, described
from pipeline.report.shards import read_batches
from pipeline.write.arrow import write_arrow
from pipeline.write.commit import check_committed, exclusive, publish
from pipeline.write.fence import check_lease
from pipeline.write.grit import write_grit_parquet
from pipeline.write.index import write_index
from pipeline.write.pending import write_pending
from pipeline.write.restore import read_places
from pipeline.write.staging import Staging
from pipeline.write.store import Store
from pipeline.write.tar import SamplePlace, TarWriter
from schemas.files import (
    DROPPED_FILE,
    FILES,
    INDEX_FILE,
    MANIFEST_FILE,
    SUMMARY_FILE,
    TAKEDOWN_FILE,
    grit_schema,
)
from schemas.manifest import Manifest, PendingTakedown
from schemas.rows import SCORED
from schemas.status import DROPPED

SIMILARITY: Final = grit_schema("").names.index("")
"""Place of the column of grit/ whose name ends with the scorer."""

Kinds = Mapping[str, Kind]
"""Key of a row to remove -> kind of the entry that names it."""


def remove_rows(store: Store, pending: PendingTakedown, lease: str) -> None:
    """Replace the files and the manifest of a shard.

    After a kill, the same call finishes what is left: rows that a file lacks already are no error. Raises UserError for
    a damaged file, and if the lease with the token `lease` does not hold the output any more.
    """
    manifest, kinds = pending["manifest"], cast(Kinds, pending["rows"])
    index = manifest["shard"]
    with Staging(store) as staging:
        try:
            stage_files(store, staging, manifest, kinds)
        except store_errors(TarError, pa.ArrowException, ValueError, LookupError) as error:
            name = store.url(store.file(MANIFEST_FILE, index))
            raise UserError(f"shard {index} cannot be read ({one_line(error)}); its manifest is {name}") from error
        new: Manifest = {**manifest, "files": dict(staging.files)}
        with exclusive(store, index):
            check_lease(store, lease)
            write_pending(store, pending)  # from here on, a kill leaves files of both versions
            publish(store, staging, new, lease, [store.file(kind, index) for kind in (DROPPED_FILE, SUMMARY_FILE)])
        check_committed(store, new)
    store.remove([store.file(TAKEDOWN_FILE, index)])


def stage_files(store: Store, staging: Staging, manifest: Manifest, kinds: Kinds) -> None:
    """Write the new files of a shard under temporary names."""
    index, names = manifest["shard"], manifest["files"]
    places: dict[str, list[SamplePlace]] = {}
    order, metadata = read_index(store, index) if store.file(INDEX_FILE, index) in names else ([], {})
    for kind in sorted(FILES, key=lambda kind: order.index(kind) if kind in order else len(order)):
        name = store.file(FILES[kind][0], index)
        if name in names and name.endswith(".tar"):
            places[kind] = copy_tar(store, staging, name, kinds)
    table, rows = store.file(FILES["grit"][1], index), store.file(FILES["arrow"][0], index)
    if table in names:
        copy_parquet(store, staging, table, kinds)
    if rows in names:
        copy_arrow(store, staging, manifest, kinds)
    if store.file(INDEX_FILE, index) in names:
        with staging.open(store.file(INDEX_FILE, index), rows=sum(map(len, places.values()))) as file:
            write_index(file, places, metadata)


def read_index(store: Store, index: int) -> tuple[list[str], dict[str, str]]:
    """Return the formats in the index of a shard, in their order, and its metadata."""
    with pa.ipc.open_file(store.read(store.file(INDEX_FILE, index)) or b"") as reader:
        table = reader.read_all()
        return table["format"].cast(pa.string()).unique().to_pylist(), text_of(reader.schema.metadata)


def text_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Return the metadata of a schema as text."""
    return {name.decode(): value.decode() for name, value in (metadata or {}).items()}


def copy_tar(store: Store, staging: Staging, name: str, kinds: Kinds) -> list[SamplePlace]:
    """Write a tar without the samples of these rows; return the places of the others."""
    samples = [sample for sample in read_places(store, name) if sample.key not in kinds]
    with (
        store.fs.open(store.path(name), "rb") as source,
        staging.open(name, rows=len(samples)) as file,
        TarWriter(file) as tar,
    ):
        read_at = reader_of(source)
        for sample in samples:
            tar.add_sample(sample.key, ((part.name, read_at(part.offset, part.size)) for part in sample.members))
    return tar.samples


def copy_parquet(store: Store, staging: Staging, name: str, kinds: Kinds) -> None:
    """Write the parquet of grit/ with nothing but key and status in these rows."""
    table = pq.read_table(io.BytesIO(store.read(name) or b""))
    rows = [taken_down_columns(row, kinds[row["key"]]) if row["key"] in kinds else row for row in table.to_pylist()]
    with staging.open(name, rows=len(rows)) as file:
        write_grit_parquet(file, rows, table.schema.names[SIMILARITY], text_of(table.schema.metadata))


def taken_down_columns(row: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the columns of grit/ of a row that is taken down, as `grit_columns` gives them."""
    stage = STAGE_OF[kind]
    status = "failed_to_download" if stage == "download" else "dropped"
    error = f"{stage}: {TAKEN_DOWN}: {kind}"
    return {**dict.fromkeys(row), "key": row["key"], "status": status, "error_message": error}


def copy_arrow(store: Store, staging: Staging, manifest: Manifest, kinds: Kinds) -> None:
    """Write the file of arrow/ with nothing but key, place and drop in these rows."""
    name = store.file(FILES["arrow"][0], manifest["shard"])
    empty = dict.fromkeys(described(SCORED))
    rows = []
    for row in read_rows(store, manifest):
        if kind := kinds.get(row["key"]):
            drop = {"status": DROPPED, "stage": STAGE_OF[kind], "reason": TAKEN_DOWN, "detail": kind}
            row = {**row, **empty, **drop}
        rows.append(row)
    with store.fs.open(store.path(name), "rb") as file:
        metadata = text_of(pa.ipc.open_file(file).schema.metadata)
    with staging.open(name, rows=len(rows)) as file:
        write_arrow(file, rows, with_images=True, metadata=metadata)


def read_rows(store: Store, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the rows of arrow/ with all columns, images included where it has them."""
    for batch in read_batches(store, manifest, SCORED.names):
        yield from batch.to_pylist()
