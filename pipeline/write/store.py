"""The output folder of a job, on a local disk or in an object store."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, cast

from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.remote import one_line, open_store, store_errors
from common.time_limits import reported

_SPACE: Final = "free some space and run the same command again; finished shards are kept"
_PERMISSION: Final = "allow this user to write there, or choose another output="
DISK_FIXES: Final = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _PERMISSION,
    errno.ENOTDIR: "there is a file where a folder is needed; choose another output=",
    errno.EEXIST: "there is a file where a folder is needed; choose another output=",
    errno.EISDIR: "there is a folder where a file is needed; choose another output=",
}
"""Error number of the file system -> the fix for the user. Other errors are not converted."""
REMOTE_FIX: Final = "check the address, the bucket, the credentials and their permissions; finished shards are kept"


@contextmanager
def convert_disk_errors(path: str) -> Iterator[None]:
    """Convert errors of the file system that the user can fix to UserError, with `path` and the fix."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FIXES:
            raise
        raise UserError(f"cannot write {path}: {os.strerror(error.errno)}; {DISK_FIXES[error.errno]}") from error


class Store:
    """An output folder: a local path or any fsspec URL. File paths are relative to it.

    Directory listings are not cached, since other nodes of a cluster write to the same folder. Methods raise UserError
    if a remote store refuses a request, or if a local folder is not writable.
    """

    def __init__(self, output: str) -> None:
        self.fs, self.root = open_store(output, use_listings_cache=False)
        self.is_local = isinstance(self.fs, LocalFileSystem)

    def path(self, relative: str) -> str:
        """Return the path of a file in the file system `fs`."""
        return f"{self.root.rstrip('/')}/{relative}"

    def read(self, relative: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        try:
            with self.convert_errors("read", relative):
                return cast(bytes, self.fs.cat_file(self.path(relative)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, relative: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        try:
            with self.convert_errors("read", relative):
                return int(self.fs.info(self.path(relative))["size"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; an empty list if it does not exist."""
        try:
            with self.convert_errors("read", folder):
                return sorted(path.rsplit("/", 1)[-1] for path in self.fs.ls(self.path(folder), detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, relative: str, text: str) -> None:
        """Write a small text file, not atomically. The files of a shard are written through `Staging`."""
        with self.convert_errors("write", relative):
            self.make_folder(relative)
            self.fs.pipe_file(self.path(relative), text.encode())

    def upload(self, path: str, relative: str) -> None:
        """Copy a local file to a remote store."""
        with self.convert_errors("write", relative):
            self.make_folder(relative)
            self.fs.put_file(path, self.path(relative))

    def make_folder(self, relative: str) -> None:
        """Create the folder of a file.

        Does nothing in an object store, which has no folders: the first part of its path is the bucket, which the user
        has to create.
        """
        if self.is_local or self.root.startswith("/"):
            self.fs.makedirs(self.path(relative).rsplit("/", 1)[0], exist_ok=True)

    def remove(self, relatives: Iterable[str]) -> None:
        """Delete files, in order, if they exist, and their temporary files, which a killed run may have left."""
        for relative in relatives:
            for name in (relative, f"{relative}.tmp") if self.is_local else (relative,):
                with self.convert_errors("write", name):
                    if self.fs.exists(self.path(name)):
                        self.fs.rm_file(self.path(name))

    @contextmanager
    def convert_errors(self, action: str, relative: str) -> Iterator[None]:
        """Convert errors of the store to UserError, with the file and the fix; `action` is "read" or "write".

        Two kinds of errors are not converted: reading a file that does not exist, which the caller handles, and reading
        from a local disk, for which there is no general fix.
        """
        if self.is_local:
            with convert_disk_errors(self.path(relative)) if action == "write" else nullcontext():
                yield
            return
        url = self.fs.unstrip_protocol(self.path(relative))
        try:
            with reported(f"waiting to {action} {url}"):
                yield
        except store_errors(ValueError) as error:
            if action == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
            raise UserError(f"cannot {action} {url}: {one_line(error)}; {REMOTE_FIX}") from error
