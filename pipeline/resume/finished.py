"""Find the finished shards of an output by listing its folders."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from common.remote import map_concurrently
from pipeline.config import PipelineConfig, content_hash, with_formats
from pipeline.read.types import ShardPlan
from pipeline.write.stage import is_same, read_manifest
from pipeline.write.store import Store
from schemas.files import FAILED_FILE, FAILED_FOLDER, FILES, INDEX_FOLDER, MANIFEST_FOLDER
from schemas.manifest import Provenance


@dataclass(frozen=True)
class Listing:
    """The files of an output: path relative to it -> size in bytes."""

    sizes: Mapping[str, int]

    def committed(self) -> list[int]:
        """Return the indices of the shards that have a manifest."""
        names = (path.rpartition("/")[2].removesuffix(".json") for path in self._in(MANIFEST_FOLDER))
        return sorted(int(name) for name in names if name.isdecimal())

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


def find_finished(
    store: Store, listing: Listing, plans: Sequence[ShardPlan], formats: Collection[str], provenances: list[Provenance]
) -> set[int]:
    """Return the indices of the `plans` that are committed as planned and have their files of `formats`.

    The manifests are read, and the sizes of the files compared with them.
    """
    by_index = {plan.index: plan for plan in plans}
    indices = sorted(list_finished(listing, plans, formats))
    manifests = map_concurrently(lambda index: read_manifest(store, index), indices)
    return {
        index
        for index, manifest in zip(indices, manifests, strict=True)
        if manifest is not None
        and is_same(manifest, by_index[index], provenances)
        and all(
            listing.sizes.get(name) == manifest["files"].get(name, {"bytes": -1})["bytes"]
            for kind in formats
            for name in (path.format(index) for path in FILES[kind])
        )
    }


def find_damaged(store: Store, plans: Sequence[ShardPlan]) -> list[ShardPlan]:
    """Return the `plans` whose manifest is damaged or names a file that is missing or has another size now."""
    listing = list_output(store)
    committed = set(listing.committed())
    finished = [plan for plan in plans if plan.index in committed]
    manifests = map_concurrently(lambda plan: read_manifest(store, plan.index), finished)
    return [
        plan
        for plan, manifest in zip(finished, manifests, strict=True)
        if manifest is None
        or any(listing.sizes.get(name) != facts["bytes"] for name, facts in manifest["files"].items())
    ]


def equal_provenances(config: PipelineConfig, provenance: Provenance) -> list[Provenance]:
    """Return the provenances that differ from `provenance` only by the formats that were written."""
    orders = (formats for n in range(1, len(FILES) + 1) for formats in permutations(FILES, n))
    hashes = [content_hash(with_formats(config, formats)) for formats in orders]
    return [{**provenance, "config_hash": value} for value in dict.fromkeys([provenance["config_hash"], *hashes])]
