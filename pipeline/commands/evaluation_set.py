"""The images of evaluation sets, by URL, SHA-256 and perceptual hash: rows with them are no training data."""

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.images import IMAGE_SUFFIXES, STORED_IMAGE_LIMITS, ImageLimits, ImageRejected, decode
from hypergrit_common.near_duplicates import N_BITS, perceptual_hash
from hypergrit_common.remote import map_concurrently, one_line, open_store, store_errors
from hypergrit_common.text import counted
from pipeline.read.samples import count_suffixes
from pipeline.read.takedown import Digests, TakedownList, parse_takedown
from schemas.rows import DOWNLOADED, HEAVY, SCORED
from schemas.status import KEPT
from schemas.table import Drop, drop_rows

logger = logging.getLogger("hypergrit")

PHASH: Final = re.compile(rf"[0-9a-fA-F]{{{N_BITS // 4}}}")
LATER: Final = tuple(name for name in SCORED.names if name not in DOWNLOADED.names)
"""Columns of the stages after `download`, which are null in a row that it drops."""


@dataclass(frozen=True)
class EvaluationSet:
    """URLs, SHA-256 and perceptual hashes; an image whose perceptual hash differs in `radius` bits is the same."""

    entries: TakedownList
    pictures: tuple[int, ...]
    radius: int

    @property
    def digest(self) -> str:
        """SHA-256 of the content, equal for equal sets."""
        digests = ([digest.hex() for digest in found] for found in (self.entries.urls, self.entries.hashes))
        values = [*digests, self.pictures]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    @cached_property
    def _bits(self) -> np.ndarray:
        return np.array(self.pictures, np.uint64)

    def match(self, url: str | None, sha256: str | None, image: bytes | None) -> str | None:
        """Return the reason why a row is in the set, None if it is not. Raises ImageRejected for a damaged image."""
        if kind := self.entries.match(url, sha256):
            return kind
        if image is None or not self.pictures:
            return None
        distance = self.distance(perceptual_hash(decode(image, STORED_IMAGE_LIMITS)))
        return f"perceptual hash, {distance} bits" if distance <= self.radius else None

    def distance(self, picture: int) -> int:
        """Return the number of bits in which a perceptual hash differs from the nearest of the set."""
        return int(np.bitwise_count(self._bits ^ np.uint64(picture)).min())


def read_evaluation_set(paths: Sequence[str], radius: int, strip_queries: bool = False) -> EvaluationSet:
    """Read folders of images, subfolders included, and lists of URLs, SHA-256 and perceptual hashes.

    Raises UserError for a folder without images, or a file or line that cannot be read.
    """
    entries, pictures = TakedownList(), set[int]()
    for path in paths:
        try:
            fs, root = open_store(path)
            if fs.isdir(root):
                found = read_folder(fs, root, path)
            else:
                found = read_list(fs, root, path)
        except store_errors(ValueError) as error:
            raise UserError(f"against={path} cannot be read: {one_line(error)}") from None
        entries, pictures = entries | found.entries, pictures | set(found.pictures)
    return EvaluationSet(entries.without_queries(strip_queries), tuple(sorted(pictures)), radius)


def read_folder(fs: AbstractFileSystem, root: str, path: str) -> EvaluationSet:
    """Read the images of a folder. One that cannot be decoded counts with its SHA-256 only."""
    every = list(map(str, fs.find(root)))
    names = [name for name in every if name.rpartition(".")[2].lower() in IMAGE_SUFFIXES]
    if not names:
        raise UserError(f"against={path}: no images ({', '.join(IMAGE_SUFFIXES)}) in this folder or below")

    def read(name: str) -> tuple[str, int | None]:
        if isinstance(fs, LocalFileSystem):
            check_file(name)
        data = fs.cat_file(name)
        try:
            return hashlib.sha256(data).hexdigest(), perceptual_hash(decode(data, ImageLimits()))
        except ImageRejected as error:
            logger.warning("%s cannot be decoded (%s); only rows with the same bytes are found", name, error)
            return hashlib.sha256(data).hexdigest(), None

    found = list(map_concurrently(read, names))
    pictures = {picture for _, picture in found if picture is not None}
    logger.info("against=%s: %s", path, counted(len(found), "image"))
    if others := set(every) - set(names):
        logger.warning("against=%s: %s are not read", path, count_suffixes(sorted(others)))
    if n_damaged := sum(picture is None for _, picture in found):
        n_found = counted(len(found), "image")
        logger.warning("against=%s: %d of %s compared by the bytes alone", path, n_damaged, n_found)
    return EvaluationSet(TakedownList(hashes=Digests.of(name for name, _ in found)), tuple(pictures), 0)


def read_list(fs: AbstractFileSystem, name: str, path: str) -> EvaluationSet:
    """Read a list: one URL, SHA-256 or perceptual hash of 16 hex digits a line."""
    if isinstance(fs, LocalFileSystem):
        check_file(name)
    try:
        lines = fs.cat_file(name).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"against={path} is neither a folder nor UTF-8 text; give one of them") from None
    others = ["" if PHASH.fullmatch(line.strip()) else line for line in lines]
    entries = parse_takedown(others, path)
    if entries.hosts:
        host = next(line for line in others if parse_takedown([line], path).hosts)
        raise UserError(f"against={path}: {host.strip()} is a host; give the URLs of the evaluation images")
    pictures = {int(line, 16) for line, other in zip(lines, others, strict=True) if line != other}
    if not len(entries) and not pictures:
        raise UserError(f"against={path} has no entries; give one URL, SHA-256 or perceptual hash a line")
    return EvaluationSet(entries, tuple(pictures), 0)


def drop_found(table: pa.Table, found: EvaluationSet) -> pa.Table:
    """Drop the rows of a SCORED table whose image is in the set.

    Rows that `score` dropped are compared too, since other thresholds may keep them. Raises UserError for an image that cannot
    be decoded.
    """
    drops: dict[int, Drop] = {}
    columns = (table[name].to_pylist() for name in ("key", "status", "stage", "url", "sha256", "image"))
    for i, (key, status, stage, *facts) in enumerate(zip(*columns, strict=True)):
        if status != KEPT and stage not in ("score", "write"):
            continue
        try:
            kind = found.match(*facts)
        except ImageRejected as error:
            raise UserError(f"row {key}: its stored image cannot be decoded ({error}); see hypergrit verify") from error
        if kind:
            drops[i] = Drop("in_evaluation_set", kind)
    return drop_rows(table, "download", drops, (*HEAVY, *LATER))
