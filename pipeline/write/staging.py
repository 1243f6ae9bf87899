"""Write the files of a shard atomically: write them under temporary names, then rename them, the manifest last.

On a local disk, the temporary name is in the same folder, so that renaming is atomic; no two writers share one. For an
object store, files are written to a local temporary folder and then uploaded, because an object becomes visible only
when its upload is complete. `temporary.remove_abandoned` removes what a killed process leaves.
"""

import errno
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import RawIOBase
from types import TracebackType
from typing import IO, Any, BinaryIO, cast

from common.disk import sync
from common.errors import UserError
from pipeline.faults.fault import ShardError
from pipeline.write.store import DISK_FIXES, Store, convert_disk_errors
from pipeline.write.temporary import remove_abandoned_folders, temporary_folder_prefix, temporary_name
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
        """Write all of `data`: an unbuffered file may accept only a part of it, near a limit for example.

        Raises OSError, also if the file accepts nothing.
        """
        rest = memoryview(data).cast("B")
        n_bytes = rest.nbytes
        while rest.nbytes:
            n_written = self._file.write(rest)
            if not n_written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._sha256.update(rest[:n_written])
            self.n_bytes += n_written
            rest = rest[n_written:]
        return n_bytes

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


class Staging:
    """The unpublished files of a shard. The end of the `with` block removes those that were not published.

    Methods raise UserError if the disk is full, the folder is not writable, a remote store refuses all writing, or a
    file has another size than what was written to it; and ShardError if only this machine or this upload failed.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.files: dict[str, FileFacts] = {}
        self._staged: dict[str, str] = {}  # relative path -> temporary local path
        self._stack = ExitStack()

    def __enter__(self) -> "Staging":
        self._folder = ""
        if not self.store.is_local:
            remove_abandoned_folders(tempfile.gettempdir())
            with scratch_errors(tempfile.gettempdir()):
                folder = tempfile.TemporaryDirectory(prefix=temporary_folder_prefix(), ignore_cleanup_errors=True)
            self._folder = self._stack.enter_context(folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._staged.values():
            with suppress(OSError):  # of a broken disk; the first error counts, and a later job removes the file
                os.remove(path)
        self._stack.close()

    @contextmanager
    def open(self, relative: str, rows: int) -> Iterator[IO[bytes]]:
        """Open a file for `rows` rows under its temporary name; sync it to disk at the end of the `with` block."""
        final = self.store.path(relative)
        path = temporary_name(final) if self.store.is_local else f"{self._folder}/{relative.replace('/', '_')}"
        self._staged[relative] = path
        with convert_disk_errors(final) if self.store.is_local else scratch_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb", buffering=0) as file:
                hashed = HashedFile(cast(BinaryIO, file))
                yield cast(IO[bytes], hashed)
                os.fsync(file.fileno())
        self.files[relative] = {"bytes": hashed.n_bytes, "sha256": hashed.sha256, "rows": rows}

    def publish(self) -> None:
        """Rename or upload all staged files to their final names, in the order in which they were opened."""
        for relative in self._staged:
            self.publish_file(relative)
        self._staged.clear()

    def publish_file(self, relative: str) -> None:
        """Rename or upload one staged file to its final name."""
        path, final = self._staged[relative], self.store.path(relative)
        with convert_disk_errors(final) if self.store.is_local else scratch_errors(path):
            check_size(path, self.files[relative]["bytes"])
        if not self.store.is_local:
            self.store.upload(path, relative, self.files[relative])
            os.remove(path)
            return
        with convert_disk_errors(final):
            os.replace(path, final)
            sync(os.path.dirname(final))


@contextmanager
def scratch_errors(path: str) -> Iterator[None]:
    """Convert errors of the disk of this machine, which others need not have, to ShardError with the host name."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FIXES:
            raise
        raise ShardError(
            f"cannot write {path} on {socket.gethostname()}: {os.strerror(error.errno)}; give that machine more space "
            "for temporary files, or set TMPDIR there to a folder with space that this user may write to"
        ) from error


@contextmanager
def local_errors() -> Iterator[None]:
    """Convert errors of writing to a temporary folder of this machine, whatever they were converted to, to ShardError."""
    try:
        with scratch_errors(tempfile.gettempdir()):
            yield
    except UserError as error:
        raise ShardError(f"{error} (on {socket.gethostname()}, in the folder for temporary files)") from error


def check_size(path: str, n_bytes: int) -> None:
    """Raise UserError if a file does not have `n_bytes` bytes, all of which were written to it."""
    size = os.path.getsize(path)
    if size != n_bytes:
        raise UserError(
            f"{path} has {size} bytes on the disk, but {n_bytes} were written; check the disk, and run the same command "
            "again"
        )
