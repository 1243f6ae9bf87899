"""Write files so that they survive a killed process and a power failure."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
