"""Find the finished shards of an output by listing its folders."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

from common.remote import map_concurrently
from pipeline.config import PipelineConfig, content_hash, with_formats
from pipeline.read.types import ShardPlan
from pipeline.write.manifest import is_same, read_manifest
from pipeline.write.store import Store
from schemas.files import FAILED_FILE, FAILED_FOLDER, FILES, INDEX_FILE, INDEX_FOLDER, MANIFEST_FILE, MANIFEST_FOLDER
from schemas.manifest import Manifest, Provenance

Formats = tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """The files of an output: path relative to it -> size in bytes."""

    sizes: Mapping[str, int]

    def committed(self) -> list[int]:
        """Return the indices of the shards that have a manifest."""
        paths = set(self._in(MANIFEST_FOLDER))
        names = (path.rpartition("/")[2].removesuffix(".json") for path in paths)
        indices = (int(name) for name in names if name.isdecimal())
        return sorted(index for index in indices if MANIFEST_FILE.format(index) in paths)

    def has_files(self, index: int, formats: Collection[str]) -> bool:
        """Return True if all files of these formats of a shard exist."""
        return all(name.format(index) in self.sizes for kind in formats for name in FILES[kind])

    def stale_failures(self) -> list[str]:
        """Return the records of failures of shards that have been finished since."""
        finished = {FAILED_FILE.format(index) for index in self.committed()}
        return [path for path in self._in(FAILED_FOLDER) if path in finished]

    def _in(self, folder: str) -> Iterator[str]:
        return (path for path in self.sizes if path.startswith(f"{folder}/") and path.endswith(".json"))


def list_output(store: Store) -> Listing:
    """List the files of all shards: one request per 1,000 files of an object store."""
    folders = (*FILES, INDEX_FOLDER, MANIFEST_FOLDER, FAILED_FOLDER)
    listings = map_concurrently(store.sizes, folders)
    pairs = zip(folders, listings, strict=True)
    return Listing({f"{folder}/{name}": size for folder, sizes in pairs for name, size in sizes.items()})


def list_finished(listing: Listing, plans: Sequence[ShardPlan], formats: Collection[str]) -> set[int]:
    """Return the indices of the `plans` that have a manifest and their files of `formats`."""
    committed = set(listing.committed())
    return {plan.index for plan in plans if plan.index in committed and listing.has_files(plan.index, formats)}


class Damage(NamedTuple):
    """A finished shard of which a file is missing or has another size, or whose manifest is damaged."""

    plan: ShardPlan
    formats: Formats  # in which it was written, in this order; it is computed again with all of them
    only_index: bool = False  # the other files are intact


def find_finished(
    store: Store,
    listing: Listing,
    plans: Sequence[ShardPlan],
    config: PipelineConfig,
    provenances: Sequence[Provenance],
) -> tuple[set[int], list[Damage]]:
    """Return the indices of the `plans` that are committed as planned with the formats of `config`, and the damages.

    The manifests are read, and the sizes of the files compared with them. A shard without its index alone is finished
    and damaged.
    """
    written = formats_by_hash(config)
    committed = set(listing.committed())
    candidates = [plan for plan in plans if plan.index in committed]
    manifests = map_concurrently(lambda plan: read_manifest(store, plan.index), candidates)
    finished, damages = set[int](), list[Damage]()
    for plan, manifest in zip(candidates, manifests, strict=True):
        if manifest is None or not is_same(manifest, plan, provenances):
            continue
        if not set(config.write.formats) <= set(manifest["formats"]):
            continue
        damage = find_damage(store, listing, plan, manifest, config, written)
        if damage is not None:
            damages.append(damage)
        if damage is None or damage.only_index:
            finished.add(plan.index)
    return finished, damages


def find_missing(store: Store, plans: Sequence[ShardPlan]) -> list[ShardPlan]:
    """Return the `plans` without a manifest, now if not in the listing: one request per 1,000 manifests."""
    committed = set(Listing({f"{MANIFEST_FOLDER}/{name}": 0 for name in store.names(MANIFEST_FOLDER)}).committed())
    unlisted = [plan for plan in plans if plan.index not in committed]
    return [plan for plan in unlisted if store.size(MANIFEST_FILE.format(plan.index)) is None]


def find_damaged(
    store: Store, plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance
) -> list[Damage]:
    """Return the finished shards of `plans` of which a file of the formats of `config`, or the manifest, is damaged.

    A shard with another plan, or of a job with other settings, which a late worker of that job may have committed, is
    damaged too.
    """
    accepted = equal_provenances(config, provenance)
    written = formats_by_hash(config)
    listing = list_output(store)
    committed = set(listing.committed())
    finished = [plan for plan in plans if plan.index in committed]
    manifests = map_concurrently(lambda plan: read_manifest(store, plan.index), finished)
    damages = (
        Damage(plan, config.write.formats)
        if manifest is None or not is_same(manifest, plan, accepted)
        else find_damage(store, listing, plan, manifest, config, written)
        for plan, manifest in zip(finished, manifests, strict=True)
    )
    return [damage for damage in damages if damage is not None]


def find_damage(
    store: Store,
    listing: Listing,
    plan: ShardPlan,
    manifest: Manifest,
    config: PipelineConfig,
    written: Mapping[str, Formats],
) -> Damage | None:
    """Compare the files of a shard, its index and those of the formats of `config`, with its manifest."""
    index = INDEX_FILE.format(plan.index)
    names = {path.format(plan.index) for kind in config.write.formats for path in FILES[kind]}
    names |= {index} & manifest["files"].keys()  # earlier versions wrote none
    damaged = {name for name in names if not has_file(store, listing, name, manifest)}
    if not damaged:
        return None
    formats = formats_of(manifest, written)
    return Damage(plan, formats, damaged == {index})


def has_file(store: Store, listing: Listing, name: str, manifest: Manifest) -> bool:
    """Return True if a file has the size that the manifest names, now if not in the listing: a shard costs hours."""
    facts = manifest["files"].get(name)
    return facts is not None and (listing.sizes.get(name) == facts["bytes"] or store.size(name) == facts["bytes"])


def formats_of(manifest: Manifest, written: Mapping[str, Formats]) -> Formats:
    """Return the formats of a shard in the order in which they were written; `written` is `formats_by_hash`."""
    return written.get(str(manifest["provenance"].get("config_hash")), tuple(manifest["formats"]))


def formats_by_hash(config: PipelineConfig) -> dict[str, Formats]:
    """Return the `content_hash` of `config` and of those that differ only by the formats -> formats, in their order."""
    orders = (formats for n in range(1, len(FILES) + 1) for formats in permutations(FILES, n))
    others = {content_hash(with_formats(config, formats)): formats for formats in orders}
    return {content_hash(config): config.write.formats} | others


def equal_provenances(config: PipelineConfig, provenance: Provenance) -> list[Provenance]:
    """Return `provenance`, and those that differ from it only by the formats that were written."""
    hashes = dict.fromkeys([provenance["config_hash"], *formats_by_hash(config)])
    return [{**provenance, "config_hash": value} for value in hashes]
