"""All files of a shard or none: written under temporary names, then renamed, the manifest last.

On a local disk the temporary name is the final one plus `.tmp`, in the same folder, so that the rename is atomic; what a killed run left
is removed when its shard is written again. An object store shows an object only once it is complete, so files are made in a local
temporary folder and uploaded. Listings are never cached: on a cluster it is other machines that write.
"""

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from io import RawIOBase
from types import TracebackType
from typing import IO, Any, BinaryIO, Final, cast

from fsspec.implementations.local import LocalFileSystem

from common.disk import sync
from common.errors import UserError
from common.remote import one_line, open_store, store_errors

_SPACE: Final = "free some space and run the same command again; finished shards are kept"
_RIGHTS: Final = "give this user the right to write there, or choose another output="
MENDS: Final = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOTDIR: "a file stands where a folder is needed; choose another output=",
    errno.EEXIST: "a file stands where a folder is needed; choose another output=",
    errno.EISDIR: "a folder stands where a file is needed; choose another output=",
}
"""What the user can do about an error of the file system; any other error is passed on as it is."""
REMOTE_MEND: Final = "check the address, the bucket, the credentials and their rights; finished shards are kept"


@contextmanager
def disk_errors_explained(path: str) -> Iterator[None]:
    """Turn an error of the file system that the user can mend into a UserError naming `path` and the mend."""
    try:
        yield
    except OSError as error:
        if error.errno not in MENDS:
            raise
        raise UserError(f"cannot write {path}: {os.strerror(error.errno)}; {MENDS[error.errno]}") from error


class HashedFile(RawIOBase):
    """A file that knows the size and SHA-256 of what was written to it."""

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


class Store:
    """An output folder, local or any fsspec URL. What a remote one refuses is a UserError."""

    def __init__(self, output: str) -> None:
        self.fs, self.root = open_store(output, use_listings_cache=False)
        self.is_local = isinstance(self.fs, LocalFileSystem)

    def path(self, relative: str) -> str:
        """The file's path in the file system `fs`."""
        return f"{self.root.rstrip('/')}/{relative}"

    def read(self, relative: str) -> bytes | None:
        """The file's content, None if there is no such file."""
        try:
            with self.explained("read", relative):
                return cast(bytes, self.fs.cat_file(self.path(relative)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, relative: str) -> int | None:
        """The file's size in bytes, None if there is no such file."""
        try:
            with self.explained("read", relative):
                return int(self.fs.info(self.path(relative))["size"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        try:
            with self.explained("read", folder):
                return sorted(path.rsplit("/", 1)[-1] for path in self.fs.ls(self.path(folder), detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, relative: str, text: str) -> None:
        """A small text file, in place: a reader at the same moment may find half of it. Files of shards go through `Staging`."""
        with self.explained("write", relative):
            self.make_folder(relative)
            self.fs.pipe_file(self.path(relative), text.encode())

    def upload(self, path: str, relative: str) -> None:
        """A local file to its place in a remote store."""
        with self.explained("write", relative):
            self.make_folder(relative)
            self.fs.put_file(path, self.path(relative))

    def make_folder(self, relative: str) -> None:
        """Make the folder of a file, where the store has folders. An object store has none: its path begins with the bucket, which is
        the user's to make."""
        if self.is_local or self.root.startswith("/"):
            self.fs.makedirs(self.path(relative).rsplit("/", 1)[0], exist_ok=True)

    def remove(self, relatives: Iterable[str]) -> None:
        """Delete these files, in order, with what a killed run left of them."""
        for relative in relatives:
            for name in (relative, f"{relative}.tmp") if self.is_local else (relative,):
                with self.explained("write", name):
                    if self.fs.exists(self.path(name)):
                        self.fs.rm_file(self.path(name))

    @contextmanager
    def explained(self, doing: str, relative: str) -> Iterator[None]:
        """Turn errors of the store into a UserError that names the file and the mend.

        `doing` is "read" or "write". A missing file that was to be read stays a FileNotFoundError, for the caller to answer; so do
        errors in reading a local disk, which no advice of ours mends.
        """
        if self.is_local:
            with disk_errors_explained(self.path(relative)) if doing == "write" else nullcontext():
                yield
            return
        try:
            yield
        except store_errors(ValueError) as error:
            if doing == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
            place = self.fs.unstrip_protocol(self.path(relative))
            raise UserError(f"cannot {doing} {place}: {one_line(error)}; {REMOTE_MEND}") from error


class Staging:
    """The files of one shard while they are written; leaving the `with` block without `publish` removes them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.files: dict[str, dict[str, Any]] = {}
        self._staged: dict[str, str] = {}
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
        """A file to write `rows` rows to; it is on the disk, under its temporary name, when the block ends."""
        final = self.store.path(relative)
        path = f"{final}.tmp" if self.store.is_local else os.path.join(self._folder, relative.replace("/", "_"))
        self._staged[relative] = path
        with disk_errors_explained(final if self.store.is_local else path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb", buffering=0) as file:
                hashed = HashedFile(cast(BinaryIO, file))
                yield cast(IO[bytes], hashed)
                os.fsync(file.fileno())
        self.files[relative] = {"bytes": hashed.n_bytes, "sha256": hashed.sha256, "rows": rows}

    def publish(self) -> None:
        """Give every file its own name, in the order they were written."""
        for relative, path in self._staged.items():
            final = self.store.path(relative)
            if not self.store.is_local:
                self.store.upload(path, relative)
                os.remove(path)
                continue
            with disk_errors_explained(final):
                os.replace(path, final)
                sync(os.path.dirname(final))
        self._staged.clear()
