"""Read some rows of a shard: their images by their places in `_index/`, or whole files if that is cheaper."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from common.errors import UserError
from common.remote import map_concurrently
from pipeline.derive.source import add_images, unchanged_manifest, with_images, without_image
from pipeline.report.attempts import keys_of
from pipeline.report.shards import read_batches
from pipeline.write.manifest import read_manifest
from pipeline.write.store import Store
from schemas.files import FILES, GRIT_IMAGE, INDEX_FILE
from schemas.manifest import Manifest, SourceShard
from schemas.rows import SCORED
from schemas.status import KEPT
from schemas.table import conform

WHOLE: Final = 0.5
"""Share of the kept rows of a shard from which on its tar is read as a whole."""


def pick_rows(source: SourceShard, kept: Sequence[int], dropped: Sequence[int], later: Sequence[int] = ()) -> pa.Table:
    """Return rows of a shard, with their images: first the n-th kept rows for each n of `kept`, then likewise `dropped`.

    Dropped rows that the shards `later` of pipeline.retry have too do not count. Raises UserError if the shard has
    changed since the command was started, lacks a row or an image, or is damaged.
    """
    store = Store(source["output"])
    manifest = unchanged_manifest(store, source)
    wanted = {True: sorted(kept), False: sorted(dropped)}
    parts = list(chosen_rows(store, manifest, wanted, retried_keys(store, later)))
    table = conform(pa.concat_tables(parts).select(SCORED.names), SCORED) if parts else SCORED.empty_table()
    if table.num_rows != len(kept) + len(dropped):
        name = store.url(store.file(FILES["arrow"][0], manifest["shard"]))
        raise UserError(f"{name} lacks rows that its manifest counts; see pipeline.verify")
    is_kept = pc.equal(table["status"], KEPT).to_pylist()
    places = {True: iter(wanted[True]), False: iter(wanted[False])}
    row_of = {(kind, next(places[kind])): row for row, kind in enumerate(is_kept)}
    rows = [row_of[kind, n] for kind, numbers in ((True, kept), (False, dropped)) for n in numbers]
    table = table.take(rows)
    if len(kept) < WHOLE * manifest["counts"]["kept"]:
        table = with_indexed_images(table, store, manifest)
    return with_images(table, store, manifest)


def retried_keys(store: Store, shards: Sequence[int]) -> set[str]:
    """Return the keys of the rows of these shards. Raises UserError if one has gone or is damaged."""
    manifests = [read_manifest(store, index) for index in shards]
    found = [manifest for manifest in manifests if manifest is not None]
    if len(found) < len(manifests):
        raise UserError(f"{store.root} has changed while it was read; run the command again when no other job writes")
    return set(keys_of(store, found).to_pylist())


def chosen_rows(
    store: Store, manifest: Manifest, wanted: dict[bool, list[int]], gone: Collection[str]
) -> Iterator[pa.Table]:
    """Yield the n-th kept and the n-th dropped rows of a shard in the order of its rows, not counting keys in `gone`."""
    seen, left = {True: 0, False: 0}, {kind: set(numbers) for kind, numbers in wanted.items()}
    for batch in read_batches(store, manifest, SCORED.names):
        rows = list[int]()
        is_row_kept = pc.equal(batch["status"], KEPT).to_pylist()
        for row, (is_kept, key) in enumerate(zip(is_row_kept, batch["key"].to_pylist(), strict=True)):
            if key in gone:
                continue
            if seen[is_kept] in left[is_kept]:
                rows.append(row)
            seen[is_kept] += 1
        if rows:
            yield pa.Table.from_batches([batch]).take(rows)


def with_indexed_images(table: pa.Table, store: Store, manifest: Manifest) -> pa.Table:
    """Return the table with the images of its kept rows that `_index/` finds in grit/."""
    places = image_places(store, manifest, without_image(table))
    path = store.path(store.file(FILES["grit"][0], manifest["shard"]))

    def read(place: tuple[int, int]) -> bytes:
        return bytes(store.fs.cat_file(path, start=place[0], end=sum(place)))

    with store.convert_errors("read", store.file(FILES["grit"][0], manifest["shard"])):
        found = dict(zip(places, map_concurrently(read, places.values()), strict=True))
    return add_images(table, found)


def image_places(store: Store, manifest: Manifest, keys: Collection[str] | None = None) -> dict[str, tuple[int, int]]:
    """Return offset and size of the images of these rows, or of all, in grit/; {} for a shard without an index."""
    name, tar = store.file(INDEX_FILE, manifest["shard"]), store.file(FILES["grit"][0], manifest["shard"])
    if (keys is not None and not keys) or not {name, tar} <= manifest["files"].keys():
        return {}
    content = store.read(name)
    if content is None:
        return {}
    try:
        index = pa.ipc.open_file(pa.BufferReader(content)).read_all()
        index.validate(full=True)
        index = index.filter(pc.equal(index["format"].cast(pa.string()), "grit"))
        if keys is not None:
            index = index.filter(pc.is_in(index["key"], pa.array(sorted(keys))))
        members = zip(index["key"].to_pylist(), index["members"].to_pylist(), strict=True)
        return {
            key: (member["offset"], member["size"]) for key, found in members for member in found
            if member["name"] == GRIT_IMAGE
        }  # fmt: skip
    except (pa.ArrowException, KeyError, ValueError):
        return {}  # a damaged index: the tar is read instead
