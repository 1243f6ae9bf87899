"""The images of evaluation sets, by URL, hash and perceptual hash."""

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from common.errors import UserError
from common.files import check_file
from common.images import STORED_IMAGE_LIMITS, ImageLimits, ImageRejected, decode
from common.remote import map_concurrently, one_line, open_store, store_errors
from pipeline.derive.phash import N_BITS, perceptual_hash
from pipeline.read.samples import IMAGE_SUFFIXES
from pipeline.read.takedown import TakedownList, parse_takedown

logger = logging.getLogger("hypergrit")

PHASH: Final = re.compile(rf"[0-9a-fA-F]{{{N_BITS // 4}}}")


@dataclass(frozen=True)
class EvaluationSet:
    """URLs, SHA-256 and perceptual hashes; an image whose perceptual hash differs in `radius` bits is the same."""

    entries: TakedownList
    pictures: tuple[int, ...]
    radius: int

    @property
    def digest(self) -> str:
        """SHA-256 of the content, equal for equal sets."""
        values = [sorted(self.entries.urls), sorted(self.entries.hashes), self.pictures]
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
    urls, hashes, pictures = set[str](), set[str](), set[int]()
    for path in paths:
        try:
            fs, root = open_store(path)
            if fs.isdir(root):
                found = read_folder(fs, root, path)
            else:
                found = read_list(fs, root, path)
        except store_errors(ValueError) as error:
            raise UserError(f"against={path} cannot be read: {one_line(error)}") from None
        entries = found.entries.without_queries() if strip_queries else found.entries
        urls, hashes, pictures = urls | entries.urls, hashes | entries.hashes, pictures | set(found.pictures)
    return EvaluationSet(TakedownList(frozenset(urls), frozenset(), frozenset(hashes)), tuple(sorted(pictures)), radius)


def read_folder(fs: AbstractFileSystem, root: str, path: str) -> EvaluationSet:
    """Read the images of a folder. One that cannot be decoded counts with its SHA-256 only."""
    names = [name for name in map(str, fs.find(root)) if name.rpartition(".")[2].lower() in IMAGE_SUFFIXES]
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
    logger.info("against=%s: %d images", path, len(found))
    return EvaluationSet(TakedownList(hashes=frozenset(digest for digest, _ in found)), tuple(pictures), 0)


def read_list(fs: AbstractFileSystem, name: str, path: str) -> EvaluationSet:
    """Read a list: one URL, SHA-256 or perceptual hash of 16 hex digits a line."""
    if isinstance(fs, LocalFileSystem):
        check_file(name)
    try:
        lines = fs.cat_file(name).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"against={path} is neither a folder nor UTF-8 text; give one of them") from None
    is_picture = [PHASH.fullmatch(line.strip()) is not None for line in lines]
    entries = parse_takedown(["" if skip else line for line, skip in zip(lines, is_picture, strict=True)], path)
    if entries.hosts:
        raise UserError(f"against={path}: {min(entries.hosts)} is a host; give the URLs of the evaluation images")
    pictures = {int(line, 16) for line, found in zip(lines, is_picture, strict=True) if found}
    if not len(entries) and not pictures:
        raise UserError(f"against={path} has no entries; give one URL, SHA-256 or perceptual hash a line")
    return EvaluationSet(entries, tuple(pictures), 0)
