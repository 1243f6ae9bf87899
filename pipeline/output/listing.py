"""The files of the shards of an output, found by listing its folders."""

from array import array
from collections.abc import Collection
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hypergrit_common.remote import map_concurrently
from pipeline.output.store import Store, files_of_shards
from schemas.files import FAILED_FILE, FAILED_FOLDER, FILES, INDEX_FOLDER, MANIFEST_FILE, MANIFEST_FOLDER, ShardFile

FOLDERS: Final = (*FILES, INDEX_FOLDER, MANIFEST_FOLDER, FAILED_FOLDER)


class Sizes(NamedTuple):
    """The files of one kind: the sorted indices [n] of their shards, and their sizes [n] in bytes."""

    indices: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def get(self, index: int) -> int | None:
        """Return the size of the file of a shard, None without one."""
        place = int(np.searchsorted(self.indices, index))
        return int(self.sizes[place]) if place < len(self.indices) and self.indices[place] == index else None


NOTHING: Final = Sizes(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Listing:
    """The files of an output; 16 bytes of memory for each."""

    def __init__(self, files: dict[ShardFile, Sizes]) -> None:
        self._files = files

    def files(self, kind: ShardFile) -> Sizes:
        """Return the files of one kind."""
        return self._files.get(kind, NOTHING)

    def committed(self) -> list[int]:
        """Return the indices of the shards that have a manifest."""
        found: list[int] = self.files(MANIFEST_FILE).indices.tolist()
        return found

    def size(self, path: str) -> int | None:
        """Return the size of a file, None if it is not there. `path` is relative to the output."""
        found = ShardFile.parse(path)
        return None if found is None else self.files(found[0]).get(found[1])

    def complete(self, formats: Collection[str]) -> set[int]:
        """Return the indices of the shards that have a manifest and all files of these formats."""
        found = self.files(MANIFEST_FILE).indices
        for kind in (kind for name in formats for kind in FILES[name]):
            found = np.intersect1d(found, self.files(kind).indices, assume_unique=True)
        return set(found.tolist())

    def stale_failures(self) -> list[str]:
        """Return the records of failures of shards that have been finished since."""
        found = np.intersect1d(self.files(FAILED_FILE).indices, self.files(MANIFEST_FILE).indices)
        return [FAILED_FILE.path(index) for index in found.tolist()]


def list_output(store: Store) -> Listing:
    """List the files of all shards: one request per 1,000 files of an object store."""
    parts = map_concurrently(partial(list_folder, store), FOLDERS)
    return Listing({kind: sizes for part in parts for kind, sizes in part.items()})


def list_folder(store: Store, folder: str) -> dict[ShardFile, Sizes]:
    """List a folder of shards."""
    found: dict[ShardFile, tuple[array[int], array[int]]] = {}
    for kind, index, size in files_of_shards(store, folder):
        indices, sizes = found.setdefault(kind, (array("q"), array("q")))
        indices.append(index)
        sizes.append(size)
    files: dict[ShardFile, Sizes] = {}
    for kind, columns in found.items():
        numbers, n_bytes = (np.frombuffer(column, np.int64) for column in columns)
        order = np.argsort(numbers, kind="stable")
        files[kind] = Sizes(numbers[order], n_bytes[order])
    return files
