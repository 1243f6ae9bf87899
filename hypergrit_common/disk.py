"""Write files so that they survive a killed process and a power failure."""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Final

from hypergrit_common.errors import UserError
from hypergrit_common.processes import ProcessId, this_process
from hypergrit_common.text import one_line

# Names of temporary files that tell which process writes them, and the removal of those that nobody writes any more.
#
# Whoever creates such a file creates it anew ("x"): a link that somebody else has put there is not followed.

SUFFIX: Final = ".tmp"
DRAFT: Final = re.compile(r".+\.([0-9a-f]{8}-\d+-\d+)\.[0-9a-f]{8}\.tmp", re.DOTALL)
"""What `temporary_name` gives; the group is the process."""
MAX_AGE_S: Final = 3600
"""A temporary file of another machine, or without the name of its writer, is abandoned if it is unchanged for this
long: writing a file takes minutes at most."""


def temporary_name(path: str) -> str:
    """Return a name that no other process and no other call uses, in the folder of `path`."""
    return f"{path}.{this_process()}.{secrets.token_hex(4)}{SUFFIX}"


def is_abandoned(entry: os.DirEntry[str], writer: list[str]) -> bool:
    """Return whether the process that `writer` names is dead; without a known process, whether the file is old."""
    process = ProcessId.parse(writer[0]) if writer else None
    alive = process.is_alive() if process else None
    if alive is not None:
        return not alive
    try:
        return time.time() - Path(entry.path).stat().st_mtime > MAX_AGE_S
    except FileNotFoundError:
        return False


@cache
def remove_drafts(folder: str) -> None:
    """Remove what dead processes have left under a `temporary_name` in a folder, once in a process; others' stay."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (found := DRAFT.fullmatch(entry.name)) and is_abandoned(entry, [found[1]]):
                remove = shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.remove
                with suppress(OSError):
                    remove(entry.path)


def sync(path: str | Path) -> None:
    """Flush the contents of a file, or the renames in a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(
    path: Path, fence: Callable[[], AbstractContextManager[object]] = nullcontext, cleans: bool = True
) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` at the end, within `fence`.

    Readers see the old or the new file. After an exception `path` is unchanged and the temporary file is removed; that of
    a killed process by a later one that `cleans`.
    """
    draft = Path(temporary_name(str(path)))
    if cleans:
        remove_drafts(str(path.parent))
    draft.touch(exist_ok=False)
    try:
        yield draft
        with fence():  # who takes over while this process stands still removes the draft
            sync(draft)
            os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.remove(draft)
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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
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
