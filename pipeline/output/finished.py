"""Find the finished shards of an output, and those that are damaged."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from hypergrit_common.remote import map_concurrently
from pipeline.config import PipelineConfig, content_hash, with_formats
from pipeline.output.listing import Listing, list_output
from pipeline.output.manifest import is_same, read_manifest
from pipeline.output.store import Store, indices
from pipeline.read.types import ShardPlan
from schemas.files import FILES, INDEX_FILE, MANIFEST_FILE, TARS
from schemas.manifest import Manifest, Provenance

Formats = tuple[str, ...]


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
    finished, damages = set[int](), list[Damage]()
    for plan, manifest in with_manifests(store, listing, plans):
        if manifest is None or not is_same(manifest, plan, provenances):
            continue
        if not set(config.write.formats) <= set(manifest["formats"]):
            continue
        damage = find_damage(store, listing, plan, manifest, config.write.formats, written)
        if damage is not None:
            damages.append(damage)
        if damage is None or damage.only_index:
            finished.add(plan.index)
    return finished, damages


def find_missing(store: Store, plans: Sequence[ShardPlan]) -> list[ShardPlan]:
    """Return the `plans` without a manifest, now if not in the listing: one request per 1,000 manifests."""
    committed = set(indices(store, MANIFEST_FILE))
    unlisted = [plan for plan in plans if plan.index not in committed]
    return [plan for plan in unlisted if store.size(MANIFEST_FILE.path(plan.index)) is None]


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
    damages = (
        Damage(plan, config.write.formats)
        if manifest is None or not is_same(manifest, plan, accepted)
        else find_damage(store, listing, plan, manifest, config.write.formats, written)
        for plan, manifest in with_manifests(store, listing, plans)
    )
    return [damage for damage in damages if damage is not None]


def with_manifests(
    store: Store, listing: Listing, plans: Iterable[ShardPlan]
) -> Iterator[tuple[ShardPlan, Manifest | None]]:
    """Yield the committed ones of `plans` with their manifests, None for a damaged one."""
    committed = set(listing.committed())
    found = [plan for plan in plans if plan.index in committed]
    return zip(found, map_concurrently(lambda plan: read_manifest(store, plan.index), found), strict=True)


def find_damage(
    store: Store,
    listing: Listing,
    plan: ShardPlan,
    manifest: Manifest,
    formats: Formats,
    written: Mapping[str, Formats],
) -> Damage | None:
    """Compare the files of a shard, its index and those of `formats`, with its manifest."""
    index = INDEX_FILE.path(plan.index)
    names = {kind.path(plan.index) for name in formats for kind in FILES[name]}
    names |= {index} if set(manifest["formats"]) & TARS.keys() else set()
    damaged = {name for name in names if not has_file(store, listing, name, manifest)}
    if not damaged:
        return None
    return Damage(plan, formats_of(manifest, written), damaged == {index} & manifest["files"].keys())


def has_file(store: Store, listing: Listing, name: str, manifest: Manifest) -> bool:
    """Return True if a file has the size that the manifest names, now if not in the listing: a shard costs hours."""
    facts = manifest["files"].get(name)
    return facts is not None and (listing.size(name) == facts["bytes"] or store.size(name) == facts["bytes"])


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
