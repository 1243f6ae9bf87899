"""Find the samples of tars for planning: from the index of an output, or from their headers."""

import hashlib
import json
from array import array
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.remote import open_store, store_errors
from pipeline.read.config import ReadConfig
from pipeline.read.formats import DamagedFileError, compression_of, open_input
from pipeline.read.samples import tar_rows
from schemas.files import FILES, INDEX_FILE, MANIFEST_FILE
from schemas.layout import split_path


class Scan(NamedTuple):
    """The bytes [n] at which the samples of a tar start, and the error at which they end, if it is damaged."""

    starts: NDArray[np.int64]
    damage: str = ""


Scanner = Callable[[Sequence[tuple[str, int]], ReadConfig, int | None], Generator[Scan, None, None]]
"""Scans tars, pairs (path, size), in their order, each up to a number of samples; raises like `scan_tar`."""


def scan_tars(files: Sequence[tuple[str, int]], config: ReadConfig, limit: int | None) -> Generator[Scan, None, None]:
    """Scan tars one after the other, each when its result is needed: a Scanner."""
    return (scan_tar(path, size, config, limit) for path, size in files)


def scan_tar(path: str, size: int, config: ReadConfig, limit: int | None) -> Scan:
    """Find the first samples of a tar, up to one more than `limit`.

    Raises UserError if it cannot be read, and for one that is damaged before its first sample, unless
    `read.skip_damaged` is set.
    """
    starts = indexed_starts(path, size)
    if starts is not None:
        return Scan(starts)
    found, damage = array("q"), ""
    try:
        with open_input(path, headers=True) as file:
            for raw in tar_rows(file, 0, config):
                found.append(raw.offset)
                if limit is not None and len(found) > limit:
                    break
    except DamagedFileError as error:
        damage = damage_of(error, len(found), config)
    return Scan(np.frombuffer(found, np.int64) if found else np.zeros(0, np.int64), damage)


def damage_of(error: DamagedFileError, n_rows: int, config: ReadConfig) -> str:
    """The description of a damaged file. Raises `error` if it has no rows and such files are not left out."""
    if n_rows == 0 and not config.skip_damaged:
        raise DamagedFileError(f"{error}, or leave such files out with read.skip_damaged=true") from error
    return str(error)


def indexed_starts(path: str, size: int) -> NDArray[np.int64] | None:
    """Return the first bytes [n] of the samples of a tar of an output, which its manifest and its `_index/` name.

    Returns None for another tar, and if the manifest names another size, or another hash of the index.
    """
    place = split_path(path)
    if place.folder not in FILES or compression_of(path):
        return None
    name = f"{INDEX_FILE.folder}/{place.stem}{INDEX_FILE.suffix}"
    try:
        fs, root = open_store(place.root)
        files = json.loads(fs.cat_file(f"{root}/{MANIFEST_FILE.folder}/{place.stem}{MANIFEST_FILE.suffix}"))["files"]
        if files[f"{place.folder}/{place.name}"]["bytes"] != size:
            return None
        content = fs.cat_file(f"{root}/{name}")
        if hashlib.sha256(content).hexdigest() != files[name]["sha256"]:
            return None
        table = pa.ipc.open_file(pa.BufferReader(content)).read_all().select(["format", "offset"])
        of_tar = table.filter(pc.equal(table["format"].cast(pa.string()), place.folder))["offset"]
        starts: NDArray[np.int64] = of_tar.to_numpy()
    except store_errors(ValueError, LookupError, TypeError, RecursionError, pa.ArrowException):
        return None
    return starts if (starts[1:] > starts[:-1]).all() and (not len(starts) or 0 <= starts[0] < size) else None
