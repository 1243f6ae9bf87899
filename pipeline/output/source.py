"""Read the shards of a finished output as tables, with their images."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from hypergrit_common.config import RESOLVED_FILE, make_layer, read_layers, saved_layers
from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line
from hypergrit_common.yaml_text import parse_yaml
from pipeline.config import KEYS, PipelineConfig, make_config
from pipeline.faults import ShardError, shard_errors
from pipeline.output.contents import file_problem
from pipeline.output.ledger import check_finished, images_of_grit, read_batches, read_manifests, read_rows
from pipeline.output.manifest import manifest_hash, read_manifest
from pipeline.output.record import check_complete
from pipeline.output.store import Store, temporary_folder_prefix
from schemas.files import FILES, MANIFEST_FILE, ShardFile
from schemas.manifest import Manifest, SourceShard
from schemas.rows import SCORED
from schemas.status import KEPT
from schemas.table import conform, set_column


def read_config(store: Store, changes: Sequence[str] = (), loads: bool = False) -> PipelineConfig:
    """Return the configuration of the job that wrote an output, with the changes of YAML files and `key=value` arguments.

    Of the job's, only what decides the content is read. `loads`: its stages will run, so that what it names outside of the
    output counts only if `changes` name it too. Raises UserError naming the file or argument, the key and the fix.
    """
    name, content = store.url(RESOLVED_FILE), store.read(RESOLVED_FILE)
    if content is None:
        raise UserError(f"{name} does not exist; give the output folder of a job")
    try:
        layer = parse_yaml(content.decode())
    except Exception as error:  # PyYAML raises many types
        raise UserError(f"{name} cannot be read: {one_line(error)}") from None
    if not isinstance(layer, dict):
        raise UserError(f"{name} must hold `key: value` lines")
    saved, given = saved_layers(read_layers(changes, KEYS), changes)
    return make_config([make_layer(layer, name, KEYS), *saved], given, loads=loads)


class Source:
    """A finished output. Raises UserError if it has no finished shard, or one that cannot be read with all its rows, and if
    it lacks shards, unless `incomplete`.

    `read_table` reads a shard. `left_out` are the shards that it lacks, or its sources lacked.
    """

    def __init__(self, output: str, incomplete: bool = False) -> None:
        self.output, self.store = output, Store(output)
        self.manifests = {manifest["shard"]: manifest for manifest in read_manifests(self.store)}
        check_finished(self.store, self.manifests)
        self.left_out = check_complete(self.store, output, self.manifests, incomplete)
        for manifest in self.manifests.values():
            check_formats(self.store, manifest)

    @cached_property
    def config(self) -> PipelineConfig:
        """The configuration of the job. Raises UserError if it cannot be read."""
        return read_config(self.store)

    @property
    def n_settings(self) -> int:
        """The number of different settings of the shards."""
        return len({manifest["provenance"]["config_hash"] for manifest in self.manifests.values()})

    @property
    def is_mixed(self) -> bool:
        """True if the shards were made with different settings (`rewrite mixed=true`)."""
        return self.n_settings > 1

    def shard(self, index: int) -> SourceShard:
        """Return the identity of a shard."""
        return {"output": self.output, "shard": index, "manifest": manifest_hash(self.manifests[index])}


def check_formats(store: Store, manifest: Manifest) -> None:
    """Raise UserError unless a shard has all rows, in arrow/, and the images of the kept rows."""
    formats = set(manifest["formats"])
    name = store.url(MANIFEST_FILE.path(manifest["shard"]))
    if "arrow" not in formats:
        raise UserError(
            f"{name}: the shard has no arrow/ file, which holds all rows; run the job with formats=[arrow,grit]"
        )
    kept = read_rows(store, [manifest], ("status", "image"), pc.field("status") == KEPT)
    if "grit" not in formats and manifest["counts"]["kept"] and next(kept, {"image": None})["image"] is None:
        raise UserError(
            f"{name}: the shard has no stored images; run the job with formats=[arrow,grit], or write.image_bytes=true"
        )


READ: Final = (FILES["arrow"][0], FILES["grit"][0])
"""The files that `read_table` reads."""


def check_hashes(store: Store, manifest: Manifest, kinds: Sequence[ShardFile] = READ) -> None:
    """Raise ShardError if one of these files is not that of the manifest, whose damage a copy would hide."""
    with tempfile.TemporaryDirectory(prefix=temporary_folder_prefix()) as folder:
        for name in (kind.path(manifest["shard"]) for kind in kinds):
            if name in manifest["files"] and (problem := file_problem(store, name, manifest["files"][name], folder)):
                again = f"run `hypergrit verify {store.url('').rstrip('/')} requeue=true`, then the job that wrote it"
                raise ShardError(f"shard {manifest['shard']} of {store.root} is damaged ({name}: {problem}); {again}")


def read_tables(store: Store, manifest: Manifest, columns: Sequence[str] = SCORED.names) -> Iterator[pa.Table]:
    """Yield the rows of a shard as tables with these columns of SCORED. Raises ShardError for what `read_batches` refuses."""
    schema = pa.schema([SCORED.field(name) for name in columns])
    with shard_errors():
        for batch in read_batches(store, manifest, columns):
            yield conform(pa.Table.from_batches([batch]).select(columns), schema)


def concat(tables: Iterable[pa.Table]) -> pa.Table:
    """Join tables; none give an empty SCORED table."""
    return pa.concat_tables([*tables] or [SCORED.empty_table()])


def read_table(store: Store, manifest: Manifest) -> pa.Table:
    """Return the SCORED table of a shard with the images of the kept rows. Raises UserError if it lacks an image."""
    return with_images(concat(read_tables(store, manifest)), store, manifest)


def unchanged_manifest(store: Store, source: SourceShard) -> Manifest:
    """Return the manifest of a shard. Raises UserError if the shard has changed since the command was started."""
    manifest = read_manifest(store, source["shard"])
    if manifest is None or manifest_hash(manifest) != source["manifest"]:
        raise UserError(
            f"{store.url(MANIFEST_FILE.path(source['shard']))} has changed while it was read; run the command again "
            "when no other job writes to this output"
        )
    return manifest


def with_images(table: pa.Table, store: Store, manifest: Manifest) -> pa.Table:
    """Return the table with the images of all kept rows, from grit/ where arrow/ has none. Raises UserError."""
    lacks_image = pc.and_(pc.equal(table["status"], KEPT), pc.is_null(table["image"]))
    missing = set(table["key"].filter(lacks_image).to_pylist())
    if not missing:
        return table
    found = images_of_grit(store, manifest, missing)
    if lost := sorted(missing - found.keys()):
        name = store.url(FILES["grit"][0].path(manifest["shard"]))
        raise UserError(f"{name}: the image of row {lost[0]} is missing ({len(lost)} rows); see hypergrit verify")
    rows = zip(*(table[name].to_pylist() for name in ("key", "image")), strict=True)
    return set_column(table, "image", pa.array([found.get(key, image) for key, image in rows], pa.binary()))
