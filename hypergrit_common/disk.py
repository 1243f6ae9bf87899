"""Write files so that they survive a killed process and a power failure."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line


def sync(path: str | Path) -> None:
    """Flush the contents of a file, or the renames in a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` at the end: readers see the old or the new file.

    After an exception `path` is unchanged and the temporary file is removed.
    """
    draft = path.with_name(f"{path.name}.tmp")
    try:
        yield draft
        sync(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a file that the user named, atomically. Raises UserError if it cannot be written."""
    try:
        with atomic_write(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {one_line(error)}; give another file") from error


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of a local lock file, which the end of the `with` block or the death of the process removes."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The previous holder removes the file; a lock on a removed file is void.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            os.remove(path)
        os.close(descriptor)
