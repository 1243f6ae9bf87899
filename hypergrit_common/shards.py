"""List the committed shards in a folder, a glob or a URL, in numeric order."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.locations import PIPE, Locations, expand_braces, split_locations
from hypergrit_common.remote import open_store, refusal, store_errors
from hypergrit_common.removed import IN_FOLDERS
from hypergrit_common.time_limits import reported
from schemas.files import FILES, FOLDERS_RECORD, MANIFEST_FILE, ShardPath

logger = logging.getLogger(__name__)

GLOB: Final = "*?["


def natural_key(text: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in names by value: 9.tar, 10.tar."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def list_shards(shards: Locations, subfolder: str = "train", suffix: str = ".tar") -> list[str]:
    """List the shards in a folder, a glob or a file, or in several `Locations`: each once, in numeric order.

    In a folder, only the files with this suffix are listed; if it has none, those of its `subfolder`. Files of a pipeline
    output are listed only if their shard has a manifest. Raises UserError if nothing is found or a store cannot be read;
    `hypergrit_common.errors.prefixed` adds the key of the setting to its message.
    """
    urls: dict[str, None] = {}
    for pattern in (pattern for item in split_locations(shards) for pattern in expand_braces(item)):
        for url in _list_pattern(pattern, subfolder, suffix):
            if url in urls:
                logger.warning("shards: %s is listed twice and read once", url)
            urls[url] = None
    if not urls:
        raise UserError(f"no shards given; give a folder of *{suffix}, a glob, or an fsspec URL of either")
    return sorted(urls, key=natural_key)


def _list_pattern(pattern: str, subfolder: str, suffix: str) -> list[str]:
    if pattern.startswith(PIPE):
        raise UserError(
            f"{PIPE}... is a command, which only data.reader=webdataset and open_shards run; give files or URLs"
        )
    fs, path = open_store(pattern)
    with read_errors_explained(pattern):
        is_glob = any(mark in path for mark in GLOB) and not fs.exists(path)
        names = [str(name) for name in fs.glob(path)] if is_glob else [path]
        found = [name for name in names if not fs.isdir(name) and (is_glob or fs.exists(name))]
        if not found:  # folders
            found = [file for name in names for file in _below(fs, name, subfolder, suffix)]
        if is_local(fs):
            for name in found:
                check_file(name)
        committed = _drop_uncommitted(fs, found)
        if not found and not fs.exists(re.split(rf"[^/]*[{re.escape(GLOB)}]", path)[0]):
            raise UserError(f"{pattern} does not exist; check the path, or the name of the bucket")
        if not committed and any(fs.exists(f"{root}/{FOLDERS_RECORD}") for root in (path, path.rpartition("/")[0])):
            raise UserError(f"{pattern} {IN_FOLDERS}")
    if not committed:
        raise UserError(f"{pattern} holds no *{suffix}; give a folder or a glob of *{suffix}, or one file")
    return [name if is_local(fs) else str(fs.unstrip_protocol(name)) for name in committed]


def _below(fs: AbstractFileSystem, folder: str, subfolder: str, suffix: str) -> list[str]:
    """List the files with this suffix of a folder or, if it has none, of its subfolder."""
    return _files_in(fs, folder, suffix) or _files_in(fs, f"{folder.rstrip('/')}/{subfolder}", suffix)


def _files_in(fs: AbstractFileSystem, folder: str, suffix: str) -> list[str]:
    """List the files of a folder with this suffix."""
    names = [str(name) for name in fs.ls(folder, detail=False)] if fs.isdir(folder) else []
    return [name for name in names if name.endswith(suffix)]


def _drop_uncommitted(fs: AbstractFileSystem, paths: list[str]) -> list[str]:
    """Remove files whose shard has no manifest: the job that writes them is still running, or was killed."""
    kept: list[str] = []
    manifests: dict[str, set[str] | None] = {}
    for path in paths:
        found = ShardPath.split(path)
        if found.folder in FILES and found.root not in manifests:
            manifests[found.root] = names_in(fs, f"{found.root}/{MANIFEST_FILE.folder}")
        committed = manifests.get(found.root) if found.folder in FILES else None
        if committed is None or f"{found.stem}{MANIFEST_FILE.suffix}" in committed:
            kept.append(path)
        else:
            logger.warning("%s has no manifest and is skipped: its shard is not finished", path)
    return kept


def names_in(fs: AbstractFileSystem, folder: str) -> set[str] | None:
    """Return the names of the files in a folder; None if it does not exist."""
    if not fs.isdir(folder):
        return None
    return {str(name).rstrip("/").rpartition("/")[2] for name in fs.ls(folder, detail=False)}


def is_local(fs: AbstractFileSystem) -> bool:
    """True for the local file system."""
    return isinstance(fs, LocalFileSystem)


@contextmanager
def read_errors_explained(url: str) -> Iterator[None]:
    """Convert exceptions of the store of `url` to a UserError that names `url`."""
    try:
        with reported(f"waiting for {url}") if "://" in url else nullcontext():
            yield
    except store_errors(ValueError) as error:
        reason = refusal(error, "check the path, the credentials and their permissions")
        raise UserError(f"{url} cannot be read: {reason}") from error
