"""Single rows of an output: their images, and everything that arrow/ holds about them."""

import bisect
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import pyarrow as pa

from common.errors import UserError
from common.tar import iter_members, reader_of
from pipeline.derive.pick import image_places
from pipeline.report.shards import read_batches
from pipeline.write.manifest import read_manifest
from pipeline.write.store import Store
from schemas.files import FILES, GRIT_IMAGE
from schemas.manifest import Manifest

DETAILS: Final = (
    *("key", "id", "url", "source", "source_row", "status", "stage", "reason", "detail"),
    *("caption", "caption_original", "extra", "width", "height", "original_width", "original_height"),
    *("original_format", "sha256", "tokens", "noun_chunks", "ref_exps", "boxes", "box_scores", "clip_similarity"),
)
"""Columns that the page shows of an opened row."""
CHUNK_ROWS: Final = 128
"""Rows of a file of details; those of arrow/ are read 1024 at a time."""
OPEN_SHARDS: Final = 64
Row = dict[str, Any]


@dataclass(frozen=True)
class Shard:
    """A finished shard; its keys and the places of its images are read once. Rows are numbered from 0."""

    store: Store
    manifest: Manifest

    @cached_property
    def keys(self) -> list[list[str]]:
        """The keys of the rows, by batch of arrow/."""
        return [batch["key"].to_pylist() for batch in read_batches(self.store, self.manifest, ("key",))]

    @cached_property
    def starts(self) -> list[int]:
        """The number of the first row of each batch, and the number of all rows."""
        return list(itertools.accumulate(map(len, self.keys), initial=0))

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.starts[-1]

    @cached_property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Key -> offset and size of the image in grit/: from `_index/`, or from the headers of the tar without it."""
        return image_places(self.store, self.manifest) or self._places_in_tar()

    def _places_in_tar(self) -> dict[str, tuple[int, int]]:
        name = self.store.file(FILES["grit"][0], self.manifest["shard"])
        if name not in self.manifest["files"]:
            return {}
        with self.store.fs.open(self.store.path(name), "rb") as file:
            members = iter_members(reader_of(file), 0, self.manifest["files"][name]["bytes"])
            parts = ((member.name.partition("."), member) for member in members)
            return {key: (m.data_offset, m.size) for (key, _, kind), m in parts if kind == GRIT_IMAGE}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise UserError at the end if the shard was written again since the start, or is being written.

        Its manifest is removed before its files are replaced, so that what was read before is that of the manifest.
        """
        try:
            yield
        finally:
            if read_manifest(self.store, self.manifest["shard"]) != self.manifest:
                raise UserError(f"shard {self.manifest['shard']} of {self.store.root} has changed")

    def image(self, number: int) -> bytes | None:
        """Return the stored image of a row, or None without one. Raises UserError if the shard has changed."""
        with self.unchanged():
            return self._image(number)

    def _image(self, number: int) -> bytes | None:
        batch, place = self._place(number)
        if at := self.places.get(self.keys[batch][place]):
            path = self.store.path(self.store.file(FILES["grit"][0], self.manifest["shard"]))
            return bytes(self.store.fs.cat_file(path, start=at[0], end=sum(at)))
        image: bytes | None = read_batch(self.store, self.manifest, ("image",), batch)["image"][place].as_py()
        return image

    def details(self, chunk: int) -> list[Row]:
        """Return the rows of a chunk, CHUNK_ROWS consecutive ones, with DETAILS. Raises UserError like `image`."""
        with self.unchanged():
            return self._details(chunk)

    def _details(self, chunk: int) -> list[Row]:
        first, end = chunk * CHUNK_ROWS, min((chunk + 1) * CHUNK_ROWS, self.n_rows)
        rows = list[Row]()
        while first < end:
            number, place = self._place(first)
            batch = read_batch(self.store, self.manifest, DETAILS, number).slice(place, end - first)
            rows += batch.to_pylist()
            first += batch.num_rows
        return rows

    def row(self, number: int) -> Row:
        """Return a row with DETAILS. Raises IndexError if the shard has none with this number, UserError like `image`."""
        self._place(number)
        chunk, place = divmod(number, CHUNK_ROWS)
        return self.details(chunk)[place]

    def _place(self, number: int) -> tuple[int, int]:
        """Return the batch of a row, and its place there. Raises IndexError if the shard has no such row."""
        if not 0 <= number < self.n_rows:
            raise IndexError(f"shard {self.manifest['shard']} has no row {number}")
        batch = bisect.bisect_right(self.starts, number) - 1
        return batch, number - self.starts[batch]


def read_batch(store: Store, manifest: Manifest, columns: Sequence[str], number: int) -> pa.RecordBatch:
    """Return one batch of arrow/ with these columns, without reading those before it."""
    path = store.path(store.file(FILES["arrow"][0], manifest["shard"]))
    with pa.memory_map(path) if store.is_local else pa.PythonFile(store.fs.open(path, "rb"), "r") as source:
        schema = pa.ipc.open_file(source).schema
        fields = sorted(schema.get_field_index(name) for name in columns)
        batch = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields)).get_batch(number)
        batch.validate(full=True)
        return batch


class Shards:
    """The shards of an output by index; a few of them are kept open."""

    def __init__(self, store: Store, manifests: list[Manifest]) -> None:
        self._manifests = {manifest["shard"]: manifest for manifest in manifests}
        self._lock = threading.Lock()
        self._opened = lru_cache(OPEN_SHARDS)(lambda index: Shard(store, self._manifests[index]))

    def get(self, index: int) -> Shard:
        """Return a shard. Raises KeyError if the output has none with this index."""
        with self._lock:
            return self._opened(index)
