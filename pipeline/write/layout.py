"""The layout of an output: chosen when the output is created, and the files of shards that it holds."""

from collections.abc import Iterator
from functools import partial

from common.errors import UserError
from common.remote import map_concurrently
from pipeline.write.store import Store, layout_json
from schemas.files import COMMAND_FILE, JOB_FILE, LAYOUT_FILE, MANIFEST_FILE
from schemas.layout import FLAT, FOLDERS, ShardFile, is_shard_folder, layout_for


def settle_layout(store: Store, n_shards: int) -> None:
    """Choose the layout of an output for this number of shards, unless it has one already; call before any is written.

    Raises UserError if the output cannot be written.
    """
    if store.layout != FLAT or layout_for(n_shards) == FLAT:
        return
    if store.read(JOB_FILE) is None and store.read(COMMAND_FILE) is None and not indices(store, MANIFEST_FILE):
        store.record_layout(layout_for(n_shards))


def shard_sizes(store: Store, folder: str) -> Iterator[tuple[str, int]]:
    """Yield the files in a folder of shards, each with its size in bytes, as paths below that folder.

    In an object store this takes one request per 1,000 files; those of folders of 1,000 shards run concurrently, and
    few of their answers are in memory. Raises UserError for an output in such folders that has lost its record.
    """
    files, folders = store.contents(folder)
    if not store.layout.per_folder:
        if any(map(is_shard_folder, folders)):
            raise UserError(
                f"{store.root} has folders of shards, but no {LAYOUT_FILE}; copy it from the original output, or write "
                f"{layout_json(FOLDERS)} to it"
            )
        yield from files.items()
        return
    parts = sorted(filter(is_shard_folder, folders))
    for part, found in zip(parts, map_concurrently(partial(sizes_in, store, folder), parts), strict=True):
        yield from ((f"{part}/{name}", size) for name, size in found.items())


def sizes_in(store: Store, folder: str, part: str) -> dict[str, int]:
    """Return the sizes of the files in a folder of 1,000 shards by name."""
    return store.sizes(f"{folder}/{part}")


def indices(store: Store, kind: ShardFile) -> list[int]:
    """Return the sorted indices of the shards that have a file of this kind."""
    names = (name for name, _ in shard_sizes(store, kind.folder) if name.endswith(kind.suffix))
    found = (store.layout.parse(name.removesuffix(kind.suffix)) for name in names)
    return sorted(index for index in found if index is not None)
