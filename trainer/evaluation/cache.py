"""Features on disk, by the hash of what was embedded. An interrupted evaluation finds the features already computed.

A cache is a folder of `.npy` files with rows (key, features). Files are written atomically and never changed, and each
process writes its own, so that several processes may share a folder.

Shapes: n rows, d width of the features.
"""

import hashlib
import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from common.disk import atomic_write

logger = logging.getLogger(__name__)

KEY_BYTES: Final = 16
ROWS_PER_FILE: Final = 2048
"""Number of new rows that are kept in memory before they are written to a file."""


def content_key(*parts: bytes | str) -> bytes:
    """The first 128 bits of the SHA-256 of the parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()[:KEY_BYTES]


class FeatureCache:
    """Features of one width in a folder, which is created. Rows are read from memory maps."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder = folder
        self.dtype = np.dtype([("key", "u1", KEY_BYTES), ("features", "<f4", width)])
        self.places: dict[bytes, tuple[int, int]] = {}  # key -> number of the file, row
        self.maps: list[NDArray[np.void]] = []
        self.pending: dict[bytes, NDArray[np.float32]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.npy")):
            self._open(path)

    def _open(self, path: Path) -> None:
        """Add the rows of a file. A damaged file is logged and ignored; its rows are computed again."""
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            logger.warning("%s is damaged and is ignored: %s", path, error)
            return
        if rows.dtype != self.dtype or rows.ndim != 1:
            logger.warning("%s holds features of another width and is ignored", path)
            return
        self.places |= {key.tobytes(): (len(self.maps), row) for row, key in enumerate(np.array(rows["key"]))}
        self.maps.append(rows)

    def __contains__(self, key: bytes) -> bool:
        return key in self.pending or key in self.places

    def read(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Return the features [n d] of keys that the cache contains."""
        found = np.empty((len(keys), self.dtype["features"].shape[0]), np.float32)
        for row, key in enumerate(keys):
            if key in self.pending:
                found[row] = self.pending[key]
            else:
                file, place = self.places[key]
                found[row] = self.maps[file][place]["features"]
        return found

    def add(self, rows: Mapping[bytes, NDArray[np.float32]]) -> None:
        """Add features [d] by key. They reach the disk at the next `flush`, or when enough have been added."""
        self.pending |= rows
        if len(self.pending) >= ROWS_PER_FILE:
            self.flush()

    @contextmanager
    def flushed(self) -> Iterator[None]:
        """Write the added rows at the end, also after an exception: an interrupted evaluation keeps them."""
        try:
            yield
        finally:
            self.flush()

    def flush(self) -> None:
        """Write the added rows to a new file."""
        if not self.pending:
            return
        rows = np.empty(len(self.pending), self.dtype)
        for place, (key, features) in enumerate(self.pending.items()):
            rows[place] = (np.frombuffer(key, np.uint8), features)
        path = self.folder / f"{os.getpid()}-{uuid.uuid4().hex[:12]}.npy"
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.save(file, rows, allow_pickle=False)
        self.pending.clear()
        self._open(path)
