"""Checks of files that the user names, before they are opened, and their hashes."""

import hashlib
import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hypergrit_common.disk import remove_drafts, temporary_name
from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line

KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


MARK: Final = ".linked_from"
"""File in a folder that names the link through which an output or a run keeps its own files there."""
MAX_MARK: Final = 1 << 16


def full_link(link: str) -> str:
    """Return the absolute path of a link, which itself is not followed."""
    return os.path.join(os.path.realpath(os.path.dirname(link)), os.path.basename(link))


def is_marked(link: str) -> bool:
    """Return True if the folder behind a link names this link in its mark. Whoever sends a link cannot have put it there."""
    try:
        check_file(mark := Path(link, MARK))
        with mark.open(encoding="utf-8") as file:
            return file.read(MAX_MARK).strip() == full_link(link)
    except (OSError, ValueError):
        return False


def check_link(link: str) -> None:
    """Raise UserError for a link to a folder that holds files and no mark of this link; an empty folder gets the mark."""
    place = os.path.realpath(link)
    try:
        if not os.listdir(place):
            Path(place, MARK).write_text(f"{full_link(link)}\n", "utf-8")
        problem = "" if is_marked(link) else "whose files this command could change or remove"
    except OSError as error:
        problem = f"which cannot be used: {one_line(error)}"
    if problem:
        mark = shlex.join(["echo", full_link(link)]) + " > " + shlex.quote(f"{place}/{MARK}")
        raise UserError(
            f"{link} is a link to {place}, {problem}; put a folder in place of the link, or, if you made it, say so with `{mark}`"
        )


class NotAFileError(OSError):
    """A path that is a folder, a device, a named pipe or a socket: opening it could wait forever or read forever."""


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise NotAFileError unless the path is a regular file, or a link to one; other OSErrors if it cannot be seen."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise NotAFileError(f"{os.fspath(path)} is {KINDS.get(stat.S_IFMT(mode), 'no file')}; give a regular file")


def read_limited(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a file of at most `most` bytes. Raises OSError for a larger one, and for what is no file."""
    check_file(path)
    if (size := os.stat(path).st_size) > most:
        raise OSError(f"it has {size} bytes, more than {most}")
    return Path(path).read_bytes()


def file_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, as `sha256sum` prints it. Raises OSError, also for what is no file."""
    check_file(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a folder to write, which becomes `path` at the end of the block, and disappears if that raises.

    It has the permissions of the umask. Raises UserError if `path` exists and is not empty, and OSError if it cannot be written.
    """
    folder = Path(path).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{path} is not empty; give a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_drafts(str(folder.parent))
    draft = Path(temporary_name(f"{folder.parent}/.{folder.name}"))
    draft.mkdir()
    try:
        yield draft
        os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_broken_link(path: str) -> bool:
    """Return True for a symbolic link to a file that does not exist, or to itself."""
    return os.path.islink(path) and not os.path.exists(path)


def check_folder_files(folder: str | os.PathLike[str]) -> None:
    """Raise NotAFileError for a device, named pipe or socket in `folder` or below; libraries would open it.

    A path that is no folder, such as the name of a model, passes.
    """
    for path in Path(folder).rglob("*"):
        if path.exists() and not path.is_dir():
            check_file(path)
