"""The identity of input files, by content."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import IO, Final

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.files import is_broken_link
from common.remote import map_concurrently, one_line, open_store, store_errors
from pipeline.read.folders import list_folder
from pipeline.read.formats import format_of
from pipeline.read.versions import object_version
from schemas.job import InputFile

logger = logging.getLogger("hypergrit")

WHOLE_BYTES: Final = 10**9
"""Local files up to this size are hashed completely, larger ones by sampled blocks."""
BLOCK_BYTES: Final = 1 << 20
N_BLOCKS: Final = 64
WHOLE_TAR_BYTES: Final = 1 << 24
"""The same for tars, whose images are too many bytes to read before the job: 22 TB for 7.5e8 samples."""
TAR_BLOCK_BYTES: Final = 1 << 16
N_TAR_BLOCKS: Final = 16


def identify_files(files: Iterable[tuple[str, int]], known: Mapping[str, InputFile]) -> list[InputFile]:
    """Return the identity of each of `files`, pairs (path, size), with `cuts` left empty.

    Files of `known` are not hashed again if their size, times of change and inode, or their ETag are the same.
    Raises UserError for a file that cannot be read.
    """
    return list(map_concurrently(partial(_identify, known=known), [path for path, _ in files]))


def _identify(path: str, known: Mapping[str, InputFile]) -> InputFile:
    try:
        if format_of(path) == "folder":
            listing = list_folder(path)
            return {"path": path, "size": listing.size, "hash": listing.version, "cuts": []}
        fs, name = open_store(path)
        if isinstance(fs, LocalFileSystem):
            return _identify_local(name, known.get(path))
        return _identify_object(fs, path, name, known.get(path))
    except store_errors(ValueError) as error:
        raise UserError(
            f"cannot read input file {path}: {one_line(error)}; replace the file, or remove it from the input"
        ) from error


def _identify_local(path: str, known: InputFile | None) -> InputFile:
    if is_broken_link(path):  # a damaged file, which read.skip_damaged leaves out
        return {"path": path, "size": 0, "hash": f"link:{os.readlink(path)}", "cuts": []}
    facts = os.stat(path)
    found: InputFile = {
        "path": path,
        "size": facts.st_size,
        "hash": "",
        "mtime_ns": facts.st_mtime_ns,
        "ctime_ns": facts.st_ctime_ns,
        "inode": facts.st_ino,
        "cuts": [],
    }
    if known and all(known.get(name) == found.get(name) for name in ("size", "mtime_ns", "ctime_ns", "inode")):
        found["hash"] = known["hash"]
        return found | ({"footer": known["footer"]} if "footer" in known else {})
    with open(path, "rb") as file:
        method = known["hash"].partition(":")[0] if known and known["size"] == facts.st_size else ""
        if method not in HASHES:
            method = method_for(path, facts.st_size)
        found["hash"] = f"{method}:{HASHES[method](file, facts.st_size)}"
        if method == "blocks" and format_of(path) == "parquet":
            found["footer"] = hash_footer(file, facts.st_size)
    return found


def method_for(path: str, size: int) -> str:
    """Return the way to hash a local file of which no hash is known: a key of HASHES."""
    if format_of(path) == "tar":
        return "sha256" if size <= WHOLE_TAR_BYTES else "samples"
    return "sha256" if size <= WHOLE_BYTES else "blocks"


def _identify_object(fs: AbstractFileSystem, path: str, name: str, known: InputFile | None) -> InputFile:
    info = fs.info(name)
    version = object_version(info)
    if not version:
        logger.warning(
            "%s: its server names neither an ETag nor a date, so that only changes of size are noticed", path
        )
    found: InputFile = {"path": path, "size": int(info["size"] or 0), "hash": f"etag:{version}", "cuts": []}
    if format_of(path) == "parquet":
        if known and (known["size"], known["hash"]) == (found["size"], found["hash"]) and "footer" in known:
            found["footer"] = known["footer"]
        else:
            with fs.open(name, "rb", block_size=BLOCK_BYTES) as file:
                found["footer"] = hash_footer(file, found["size"])
    return found


def hash_whole(file: IO[bytes], size: int) -> str:
    """Hash a file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def hash_blocks(file: IO[bytes], size: int) -> str:
    """Hash `N_BLOCKS` blocks of `BLOCK_BYTES`."""
    return hash_parts(file, size, N_BLOCKS, BLOCK_BYTES)


def hash_samples(file: IO[bytes], size: int) -> str:
    """Hash `N_TAR_BLOCKS` blocks of `TAR_BLOCK_BYTES`."""
    return hash_parts(file, size, N_TAR_BLOCKS, TAR_BLOCK_BYTES)


def hash_parts(file: IO[bytes], size: int, n_blocks: int, n_bytes: int) -> str:
    """Hash blocks at equal distances; the first block and the last are at the ends of the file."""
    digest = hashlib.sha256()
    for i in range(n_blocks):
        file.seek(max(0, size - n_bytes) * i // (n_blocks - 1))
        digest.update(file.read(n_bytes))
    return digest.hexdigest()


HASHES: Final[Mapping[str, Callable[[IO[bytes], int], str]]] = {
    "sha256": hash_whole,
    "blocks": hash_blocks,
    "samples": hash_samples,
}
"""Prefix of a recorded hash -> its function of a file and its size."""


def hash_footer(file: IO[bytes], size: int) -> str:
    """Hash the footer of a parquet file, which has the sizes, positions and statistics of its columns."""
    file.seek(max(0, size - 8))
    tail = file.read(8)
    start = max(0, size - 8 - int.from_bytes(tail[:4], "little"))
    file.seek(start)
    return hashlib.sha256(file.read(size - start)).hexdigest()


def version_of(file: InputFile) -> str:
    """Return the version by which reading notices a change: the time of modification or the ETag."""
    return str(file["mtime_ns"]) if "mtime_ns" in file else file["hash"].removeprefix("etag:")
