"""Writing that survives a kill and a power cut."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: str | Path) -> None:
    """Wait until a file's contents, or a folder's renames, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A path to write a file to, which then takes the place of `path` in one step: readers see the old file or all of the new one."""
    draft = path.with_name(f"{path.name}.tmp")
    try:
        yield draft
        sync(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)
