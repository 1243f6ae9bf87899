"""Read the shards of a finished output as tables, with their images."""

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.derive.settings import read_config
from pipeline.report.shards import check_finished, read_batches, read_images, read_manifests
from pipeline.resume.complete import check_complete
from pipeline.write.manifest import manifest_hash, read_manifest
from pipeline.write.pending import check_nothing_pending
from pipeline.write.store import Store
from schemas.files import FILES, MANIFEST_FILE
from schemas.manifest import Manifest, SourceShard
from schemas.rows import SCORED
from schemas.status import KEPT
from schemas.table import conform, set_column


def may_lack_queries(config: PipelineConfig, manifests: Iterable[Manifest]) -> bool:
    """Return True if URLs of an output may have lost their queries, which a list to compare them with may have.

    Versions up to 0.6.0 merged such outputs with others without a trace, so all outputs of commands count.
    """
    return config.write.strip_url_queries or any("origin" in manifest for manifest in manifests)


class Source:
    """A finished output. Raises UserError if it has no finished shard, or one that cannot be read with all its rows, and if
    it lacks shards, unless `incomplete`.

    `read_table` reads a shard. `left_out` are the shards that it lacks, or its sources lacked.
    """

    def __init__(self, output: str, incomplete: bool = False) -> None:
        self.output, self.store = output, Store(output)
        check_nothing_pending(self.store)
        self.manifests = {manifest["shard"]: manifest for manifest in read_manifests(self.store)}
        check_finished(self.store, self.manifests)
        self.left_out = check_complete(self.store, output, self.manifests, incomplete)
        for manifest in self.manifests.values():
            check_formats(self.store, manifest)

    @property
    def config(self) -> PipelineConfig:
        """The configuration of the job. Raises UserError if it cannot be read."""
        return read_config(self.store)

    @property
    def n_settings(self) -> int:
        """The number of different settings of the shards, without attempts of pipeline.retry: they differ in the download."""
        jobs = (manifest for manifest in self.manifests.values() if "retry" not in manifest)
        return len({manifest["provenance"]["config_hash"] for manifest in jobs})

    @property
    def is_mixed(self) -> bool:
        """True if the shards were made with different settings (pipeline.merge mixed=true)."""
        return self.n_settings > 1

    def shard(self, index: int) -> SourceShard:
        """Return the identity of a shard."""
        return {"output": self.output, "shard": index, "manifest": manifest_hash(self.manifests[index])}


def check_formats(store: Store, manifest: Manifest) -> None:
    """Raise UserError unless a shard has all rows, in arrow/, and the images of the kept rows."""
    formats = set(manifest["formats"])
    name = store.url(store.file(MANIFEST_FILE, manifest["shard"]))
    if "arrow" not in formats:
        raise UserError(
            f"{name}: the shard has no arrow/ file, which holds all rows; run the job with formats=[arrow,grit]"
        )
    if "grit" not in formats and manifest["counts"]["kept"] and not stores_images(store, manifest):
        raise UserError(
            f"{name}: the shard has no stored images; run the job with formats=[arrow,grit], or write.image_bytes=true"
        )


def stores_images(store: Store, manifest: Manifest) -> bool:
    """Return True if arrow/ of a shard has the image of its first kept row."""
    for batch in read_batches(store, manifest, ("status", "image")):
        kept = pc.equal(batch["status"], KEPT)
        if pc.any(kept).as_py():
            return bool(batch.filter(kept)["image"][0].is_valid)
    return False


def read_table(output: str, source: SourceShard) -> pa.Table:
    """Return the SCORED table of a shard with the images of the kept rows.

    Raises UserError if the shard has changed since the command was started, or lacks an image.
    """
    store = Store(output)
    manifest = unchanged_manifest(store, source)
    batches = list(read_batches(store, manifest, SCORED.names))
    table = conform(pa.Table.from_batches(batches).select(SCORED.names), SCORED) if batches else SCORED.empty_table()
    return with_images(table, store, manifest)


def unchanged_manifest(store: Store, source: SourceShard) -> Manifest:
    """Return the manifest of a shard. Raises UserError if the shard has changed since the command was started."""
    manifest = read_manifest(store, source["shard"])
    if manifest is None or manifest_hash(manifest) != source["manifest"]:
        raise UserError(
            f"{store.url(store.file(MANIFEST_FILE, source['shard']))} has changed while it was read; run the command again "
            "when no other job writes to this output"
        )
    return manifest


def with_images(table: pa.Table, store: Store, manifest: Manifest) -> pa.Table:
    """Return the table with the images of all kept rows, from grit/ where arrow/ has none. Raises UserError."""
    missing = without_image(table)
    if not missing:
        return table
    found = read_images(store, manifest, missing)
    if lost := sorted(missing - found.keys()):
        name = store.url(store.file(FILES["grit"][0], manifest["shard"]))
        raise UserError(f"{name}: the image of row {lost[0]} is missing ({len(lost)} rows); see pipeline.verify")
    return add_images(table, found)


def without_image(table: pa.Table) -> set[str]:
    """Return the keys of the kept rows whose image is null."""
    lacks_image = pc.and_(pc.equal(table["status"], KEPT), pc.is_null(table["image"]))
    return set(table["key"].filter(lacks_image).to_pylist())


def add_images(table: pa.Table, found: Mapping[str, bytes]) -> pa.Table:
    """Return the table with the images in `found`, by key."""
    images = [
        found.get(row, image) for row, image in zip(*(table[n].to_pylist() for n in ("key", "image")), strict=True)
    ]
    return set_column(table, "image", pa.array(images, pa.binary()))
