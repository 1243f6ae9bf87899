"""Names of temporary files that tell which process writes them, and the removal of those that nobody writes any more."""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from common.process import ProcessId, this_process
from schemas.layout import is_shard_folder

SUFFIX: Final = ".tmp"
LOCK_SUFFIX: Final = ".lock.tmp"
"""Suffix of lock files: their names hold no process, since several processes use them."""
FOLDER_PREFIX: Final = "hypergrit-"
FOLDER: Final = re.compile(rf"{FOLDER_PREFIX}([0-9a-f]{{8}}-\d+-\d+)\.[a-z0-9_]{{8}}")
"""Names of the temporary folders: the prefix, the process, and the eight characters that `tempfile` adds."""
MAX_AGE_S: Final = 3600
"""A temporary file of another machine, or without the name of its writer, is abandoned if it is unchanged for this
long: writing a file takes minutes at most."""


def temporary_name(path: str) -> str:
    """Return a name that no other process and no other call uses, in the folder of `path`."""
    return f"{path}.{this_process()}.{secrets.token_hex(4)}{SUFFIX}"


def temporary_folder_prefix() -> str:
    """Return the prefix for temporary folders of this process."""
    return f"{FOLDER_PREFIX}{this_process()}."


def remove_abandoned(folders: Iterable[str], in_subfolders: bool = False) -> None:
    """Remove the temporary files of dead processes in local folders; folders that do not exist are skipped.

    `in_subfolders`: also in the folders of shards in them.
    """
    for folder in folders:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                if in_subfolders and is_shard_folder(entry.name):
                    remove_abandoned([entry.path])
                elif entry.name.endswith(LOCK_SUFFIX):
                    remove_free_lock(entry.path)
                elif entry.name.endswith(SUFFIX) and is_abandoned(entry, entry.name.split(".")[-3:-2]):
                    with suppress(FileNotFoundError):
                        os.remove(entry.path)


def remove_free_lock(path: str) -> None:
    """Remove a lock file of `swap.locked` that no process holds, such as that of a killed process."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # else its last holder has removed it
                os.remove(path)
        finally:
            os.close(descriptor)


def remove_abandoned_folders(parent: str) -> None:
    """Remove the temporary folders of dead processes in `parent`, such as those of killed workers in TMPDIR.

    Folders with other names, such as `hypergrit-data`, are not touched.
    """
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            found = FOLDER.fullmatch(entry.name)
            if found and entry.is_dir(follow_symlinks=False) and is_abandoned(entry, [found[1]]):
                shutil.rmtree(entry.path, ignore_errors=True)


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
