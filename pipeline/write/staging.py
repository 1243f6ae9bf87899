"""Write the files of a shard atomically: write them under temporary names, then rename them, the manifest last.

On a local disk, the temporary name is the final one plus `.tmp`, in the same folder, so that renaming is atomic. The
temporary files of a killed run are removed when its shard is written again. For an object store, files are written to
a local temporary folder and then uploaded, because an object becomes visible only when its upload is complete.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import RawIOBase
from types import TracebackType
from typing import IO, Any, BinaryIO, cast

from common.disk import sync
from pipeline.write.store import Store, convert_disk_errors
from schemas.manifest import FileFacts


class HashedFile(RawIOBase):
    """A file that records the size and the SHA-256 of the data written to it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._sha256 = hashlib.sha256()
        self.n_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.n_bytes

    def write(self, data: Any, /) -> int:
        n_bytes = memoryview(data).nbytes
        self._file.write(data)
        self._sha256.update(data)
        self.n_bytes += n_bytes
        return n_bytes

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


class Staging:
    """The unpublished files of a shard. The end of the `with` block removes those that were not published.

    Methods raise UserError if the disk is full, the folder is not writable, or a remote store refuses an upload.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.files: dict[str, FileFacts] = {}
        self._staged: dict[str, str] = {}  # relative path -> temporary local path
        self._stack = ExitStack()

    def __enter__(self) -> "Staging":
        self._folder = "" if self.store.is_local else self._stack.enter_context(tempfile.TemporaryDirectory())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._staged.values():
            if os.path.exists(path):
                os.remove(path)
        self._stack.close()

    @contextmanager
    def open(self, relative: str, rows: int) -> Iterator[IO[bytes]]:
        """Open a file for `rows` rows under its temporary name; sync it to disk at the end of the `with` block."""
        final = self.store.path(relative)
        path = f"{final}.tmp" if self.store.is_local else os.path.join(self._folder, relative.replace("/", "_"))
        self._staged[relative] = path
        with convert_disk_errors(final if self.store.is_local else path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb", buffering=0) as file:
                hashed = HashedFile(cast(BinaryIO, file))
                yield cast(IO[bytes], hashed)
                os.fsync(file.fileno())
        self.files[relative] = {"bytes": hashed.n_bytes, "sha256": hashed.sha256, "rows": rows}

    def publish(self) -> None:
        """Rename or upload all staged files to their final names, in the order in which they were opened."""
        for relative, path in self._staged.items():
            final = self.store.path(relative)
            if not self.store.is_local:
                self.store.upload(path, relative)
                os.remove(path)
                continue
            with convert_disk_errors(final):
                os.replace(path, final)
                sync(os.path.dirname(final))
        self._staged.clear()
