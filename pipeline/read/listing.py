"""List the input files: a file, a folder, a glob, or a pattern with braces, on a disk or in a store."""

import logging
import math
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from braceexpand import braceexpand
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.files import is_broken_link
from common.remote import map_concurrently, one_line, open_store, store_errors
from common.time_limits import reported
from common.urls import check_no_user
from pipeline.read.folders import is_image, list_folder
from pipeline.read.formats import KNOWN, compression_of, format_of

logger = logging.getLogger(__name__)

Files = list[tuple[str, int]]
"""Input files as pairs (path, size in bytes)."""

MAX_PATTERNS: Final = 1_000_000
RANGE: Final = re.compile(r"\{(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?\d+)?\}")


def list_files(input: str) -> Files:
    """List the input files as sorted pairs (path, size in bytes).

    `input` is a file, folder or glob, as a local path or an fsspec URL; `{00..99}` and `{a,b}` in it stand for several.
    Of tars, .json files and others in the same place, only one kind is read: img2dataset writes a parquet file with the
    same rows next to each tar, and .json files often hold statistics. A folder of images becomes the path with a slash
    at its end. Raises UserError if there are no input files, if they cannot be listed, and for a URL with a user name or
    a password, which errors of stores repeat in other forms.
    """
    if "://" in input:
        check_no_user("input", input)
    with reported(f"waiting for the list of {input}") if "://" in input else nullcontext():
        if "{" not in input or os.path.lexists(input):
            return _list_files(input)
        found = {path: size for files in map_concurrently(_list_files, expand_braces(input)) for path, size in files}
        return sorted(found.items())


def expand_braces(pattern: str) -> list[str]:
    """Return the paths that a pattern with braces stands for.

    >>> expand_braces("data/{08..10}.tar")
    ['data/08.tar', 'data/09.tar', 'data/10.tar']
    """
    spans = [abs(int(found[2]) - int(found[1])) + 1 for found in RANGE.finditer(pattern)]
    if math.prod(spans) > MAX_PATTERNS:
        raise UserError(f"input {pattern!r} stands for {math.prod(spans)} files; give a glob or a folder")
    try:
        return list(dict.fromkeys(braceexpand(pattern)))
    except ValueError as error:
        raise UserError(f"input {pattern!r}: {one_line(error)}; close each brace, as in data/{{00..99}}.tar") from None


def _list_files(input: str) -> Files:
    if "::" in input and os.path.lexists(input):
        raise chain_error(input)
    fs, root = open_store(input)
    try:
        found = find_files(fs, root)
        if found == [root] and format_of(root) is None:
            raise UserError(f"input file {input!r} has no known format; its name must end in {KNOWN}")
        if not found and not fs.isdir(root):
            raise UserError(f"input {input!r} does not exist; give a file, a folder, a glob or a URL")
        files = choose_files(found)
        if not files:
            raise UserError(f"input {input!r} holds no file of a known format; names must end in {KNOWN}")
        check_names(files)
        is_local = isinstance(fs, LocalFileSystem)
        return [(url, _size(fs, path, url)) for path in files if (url := path if is_local else _url(fs, path))]
    except store_errors(ValueError) as error:
        raise UserError(
            f"input {input!r} cannot be listed: {one_line(error)}; check the URL, the credentials and their permissions"
        ) from error


def _url(fs: AbstractFileSystem, path: str) -> str:
    url = fs.unstrip_protocol(path)
    return f"{url.rstrip('/')}/" if path.endswith("/") else str(url)


def _size(fs: AbstractFileSystem, path: str, url: str) -> int:
    if format_of(path) == "folder":
        return list_folder(url).size
    return 0 if isinstance(fs, LocalFileSystem) and is_broken_link(path) else fs.size(path) or 0


def find_files(fs: AbstractFileSystem, root: str) -> list[str]:
    """Return the paths of a glob, those below a folder that are not hidden, or the path of a file that exists."""
    fs.invalidate_cache()  # other machines may have added files since this process listed them
    if any(sign in root for sign in "*?[") and not fs.exists(root):
        found = list(fs.glob(root))
        if any(format_of(path) for path in found):
            return found
        folders = [path for path in found if fs.isdir(path)]
        return [path for folder in folders for path in _below(fs, folder)] or found
    if format_of(root) in (None, "folder") and fs.isdir(root):
        return _below(fs, root)
    return [root] if fs.exists(root) else []


def _below(fs: AbstractFileSystem, folder: str) -> list[str]:
    return [path for path in fs.find(folder) if not _is_hidden(path[len(folder) :])]


def choose_files(found: Sequence[str]) -> list[str]:
    """Return the sorted files that are read: tars, or else rows, or else folders of images, or else .json files."""
    files = sorted(path for path in found if format_of(path))
    tars = [path for path in files if format_of(path) == "tar"]
    if tars:
        warn_about_ignored(tars, files)
        return tars
    if rows := [path for path in files if format_of(path) != "json"]:
        if len(rows) < len(files):
            logger.info("%d .json files beside the other input files are not read", len(files) - len(rows))
        return rows
    folders = {path.rpartition("/")[0] for path in found if is_image(path.rpartition("/")[2])}
    return sorted(f"{folder}/" for folder in folders) or files


def check_names(paths: Sequence[str]) -> None:
    """Raise UserError for a name that is not UTF-8, which no record can hold, or that fsspec takes for a chain of URLs."""
    for path in paths:
        if path != (readable := path.encode(errors="backslashreplace").decode()):
            raise UserError(f"the name of the input file {readable} is not valid UTF-8; rename the file")
        if "::" in path:
            raise chain_error(path)


def chain_error(path: str) -> UserError:
    """Return the error for a file whose name has a double colon."""
    readable = path.encode(errors="backslashreplace").decode()
    return UserError(
        f"the name of the input file {readable} contains '::', which separates chained URLs; rename the file or folder"
    )


def warn_about_ignored(tars: list[str], files: list[str]) -> None:
    """Log a warning about files that are ignored because the input has tars, except files named like a tar."""
    stems = {_stem(tar) for tar in tars} | {f"{_stem(tar)}_stats" for tar in tars}
    ignored = [path for path in files if format_of(path) != "tar" and path.rsplit(".", 1)[0] not in stems]
    if ignored:
        logger.warning(
            "only the %d tars of the input are read, not the %d files beside them (first: %s); "
            "to read those, give input= as a glob that matches them",
            len(tars), len(ignored), ignored[0],
        )  # fmt: skip


def _stem(tar: str) -> str:
    return tar[: len(tar) - len(compression_of(tar))].removesuffix(".tar").removesuffix(".tgz")


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))
